// How search ranks pages: Sphinx's own figures, and what is about the project after what is about its use.
var Scorer = {
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
  score: ([page, , , , score]) => (/^(CHANGELOG|CONTRIBUTING|tests|pipeline)/.test(page) ? score / 4 : score),
};
