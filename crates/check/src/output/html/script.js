"use strict";
// Shows the findings that have all words of the search and one of the kinds that are ticked.
(() => {
  const search = document.getElementById("search");
  if (!search) return;
  const kinds = [...document.querySelectorAll(".filters input[type=checkbox]")];
  const findings = [...document.querySelectorAll("details.finding")];
  const texts = findings.map((finding) => finding.textContent.toLowerCase());
  const shown = document.getElementById("shown");
  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const ticked = new Set(kinds.filter((kind) => kind.checked).map((kind) => kind.value));
    let count = 0;
    findings.forEach((finding, number) => {
      const fits = ticked.has(finding.dataset.word) && words.every((word) => texts[number].includes(word));
      finding.hidden = !fits;
      count += fits ? 1 : 0;
    });
    shown.textContent = `${count} of ${findings.length} shown`;
  };
  search.addEventListener("input", filter);
  kinds.forEach((kind) => kind.addEventListener("change", filter));
  document.querySelector(".filters").hidden = false;
  filter();
})();
