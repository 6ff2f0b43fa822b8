#compdef max-weights
_max_weights() {
    local -a whole open
    local answer files=1
    # The first character says what follows: a word that ends there, one that goes on, or that files are wanted.
    for answer in "${(@f)$(COMPLETE=zsh COMPLETER -- "${(@)words[1,CURRENT-1]}" "$PREFIX" 2>/dev/null)}"; do
        case "$answer" in
            (+*) open+=("${answer#+}") ;;
            (-*) whole+=("${answer#-}") ;;
            (/) files=0 ;;
        esac
    done
    local found=1
    (( $#whole )) && _describe -V values whole && found=0
    (( $#open )) && _describe -V values open -S '' && found=0
    (( files == 0 )) && _files && found=0
    return found
}
if [[ "${funcstack[1]}" == _max_weights ]]; then
    _max_weights "$@"  # loaded from a folder of fpath
else
    compdef _max_weights max-weights
fi
