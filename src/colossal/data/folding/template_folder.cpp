#include "colossal/data/folding/template_folder.h"

#include <algorithm>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/data/visible_files.h"
#include "colossal/protein/sequence_alignment.h"
#include "colossal/protein/structure_reader.h"

namespace colossal::data {
namespace {

struct RankedTemplate {
  FoldingTemplate known;
  int64_t equal = 0;  // residues
};

/// Returns the number of residues at which two sequences are equal.
int64_t equal_residues(std::string_view sequence, const std::string& letters) {
  const auto pairs = protein::align_sequences(sequence, letters);
  return std::count_if(pairs.begin(), pairs.end(), [&](const auto& pair) {
    return sequence[static_cast<size_t>(pair.first)] == letters[static_cast<size_t>(pair.second)];
  });
}

/// Returns the chain of a structure that is most like the query.
RankedTemplate best_chain(const protein::Structure& structure, const std::string& path, std::string_view sequence) {
  RankedTemplate best{.equal = -1};
  for (const protein::StructureChain& chain : structure.chains) {
    const int64_t equal = equal_residues(sequence, protein::sequence_of(chain));
    if (equal > best.equal) best = {{.name = path, .chain = chain}, equal};
  }
  return best;
}

}  // namespace

FoundTemplates read_templates(const std::string& folder, std::string_view sequence) {
  const std::vector<std::string> paths = visible_files(folder, protein::is_structure_name);
  require(!paths.empty(), "template", "a folder of templates must have .cif or .pdb files: got none in ", folder,
          "; copy structures into it, or leave templates out");
  FoundTemplates found;
  std::vector<RankedTemplate> ranked;
  for (const std::string& path : paths) {
    const protein::Structure structure = protein::read_structure(path);
    found.notices.insert(found.notices.end(), structure.notices.begin(), structure.notices.end());
    ranked.push_back(best_chain(structure, path, sequence));
    aligned_template(sequence, ranked.back().known);  // refuses strangers
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const RankedTemplate& a, const RankedTemplate& b) { return a.equal > b.equal; });
  for (RankedTemplate& one : ranked) found.templates.push_back(std::move(one.known));
  return found;
}

}  // namespace colossal::data
