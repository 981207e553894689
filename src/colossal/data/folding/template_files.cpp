#include "colossal/data/folding/template_files.h"

#include <algorithm>
#include <utility>

#include "colossal/protein/sequence_alignment.h"
#include "colossal/protein/structure_reader.h"

namespace colossal::data {
namespace {

int64_t equal_residues(std::string_view sequence, const protein::StructureChain& chain) {
  const std::string letters = protein::sequence_of(chain);
  int64_t equal = 0;
  for (const auto& [a, b] : protein::align_sequences(sequence, letters))
    equal += sequence[static_cast<size_t>(a)] == letters[static_cast<size_t>(b)];
  return equal;
}

}  // namespace

FoldingTemplate read_template(const std::string& path, std::string_view sequence, std::vector<std::string>* notices) {
  protein::Structure structure = protein::read_structure(path);
  if (notices != nullptr) notices->insert(notices->end(), structure.notices.begin(), structure.notices.end());
  const auto nearest = std::max_element(
      structure.chains.begin(), structure.chains.end(),
      [&](const auto& a, const auto& b) { return equal_residues(sequence, a) < equal_residues(sequence, b); });
  return {path + "_" + nearest->id, std::move(*nearest)};
}

void sort_templates(std::vector<FoldingTemplate>& templates, std::string_view sequence) {
  std::vector<std::pair<int64_t, size_t>> order;
  for (size_t i = 0; i < templates.size(); ++i) order.emplace_back(-equal_residues(sequence, templates[i].chain), i);
  std::sort(order.begin(), order.end());
  std::vector<FoldingTemplate> sorted;
  for (const auto& [equal, index] : order) sorted.push_back(std::move(templates[index]));
  templates = std::move(sorted);
}

}  // namespace colossal::data
