_max_weights() {
    compopt +o nospace 2>/dev/null
    # Bash breaks words at : = and @ too. What has no blank between is one word here, as it is for the command.
    local rest="${COMP_LINE:0:COMP_POINT}" word i last=-1 words=()
    for ((i = 0; i <= COMP_CWORD; i++)); do
        word="${COMP_WORDS[i]}"
        if [[ $i -eq 0 || "$rest" == [[:blank:]]* ]]; then
            rest="${rest#"${rest%%[![:blank:]]*}"}"
            last=$((last + 1))
            words[last]=""
        fi
        [[ $i -eq $COMP_CWORD ]] && word="$rest"
        words[last]+="$word"
        rest="${rest#"$word"}"
    done
    COMPREPLY=()
    while IFS= read -r word; do
        # Bash itself puts the slash after a folder, and would also put one after a command that is called like a folder.
        if [[ "$word" == */ ]]; then
            word="${word%/}"
        elif [[ -d "$word" ]]; then
            compopt +o filenames 2>/dev/null
        fi
        [[ "$word" == *[.=] ]] && compopt -o nospace 2>/dev/null
        COMPREPLY+=("$word")
    done < <(COMPLETE=bash _MAX_WEIGHTS_REPLACED="$2" COMPLETER -- "${words[@]}" 2>/dev/null)
}
# Before bash 4.4 matches are sorted; before 4.0 no space follows any of them.
complete -o nospace -o filenames -o bashdefault -o nosort -F _max_weights max-weights 2>/dev/null ||
    complete -o nospace -o filenames -o bashdefault -F _max_weights max-weights
