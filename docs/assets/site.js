// What scrolls sideways can be reached by the keyboard: the theme wraps wide tables when the page is there.
new MutationObserver(() => {
  for (const wrap of document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])")) wrap.tabIndex = 0;
}).observe(document.documentElement, { childList: true, subtree: true });
