#include "colossal/fold/folded_files.h"

#include <ATen/ATen.h>

#include <cmath>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/number.h"
#include "colossal/checkpoint/safetensors.h"

namespace colossal::fold {
namespace {

constexpr double kMaxError = 31.75;  // Angstrom: the middle of the last bin

std::vector<int64_t> types_of_chain(const std::string& letters) {
  std::vector<int64_t> types;
  for (const char letter : letters) types.push_back(protein::type_of_letter(letter));
  return types;
}

}  // namespace

protein::Structure structure_of(const Folded& folded) {
  const at::Tensor places = folded.positions.to(at::kDouble).contiguous(),
                   b_factors = folded.atom_plddt.to(at::kDouble).contiguous(), mask = folded.atom_mask.contiguous();
  static_assert(sizeof(protein::Point) == 3 * sizeof(double));
  const auto* points = reinterpret_cast<const protein::Point*>(places.const_data_ptr<double>());
  protein::Structure structure{.name = folded.name};
  size_t first = 0;
  for (const std::string& chain : folded.chains) {
    const std::vector<int64_t> types = types_of_chain(chain);
    const size_t count = types.size() * protein::kAtom37;
    structure.chains.push_back(protein::chain_of_atom37(
        protein::chain_id(static_cast<int64_t>(structure.chains.size())), types, {points + first, count},
        {mask.const_data_ptr<bool>() + first, count}, {b_factors.const_data_ptr<double>() + first, count}));
    first += count;
  }
  return structure;
}

protein::Structure unplaced_structure(const Sequence& sequence) {
  protein::Structure structure{.name = sequence.name};
  for (const std::string& letters : sequence.chains) {
    protein::StructureChain chain{protein::chain_id(static_cast<int64_t>(structure.chains.size())), {}};
    for (const int64_t type : types_of_chain(letters)) {
      protein::StructureResidue residue{static_cast<int>(type), {}};
      for (int atom = 0; atom < protein::kAtom37; ++atom)
        if (protein::residue_tables().atom37_exists[static_cast<size_t>(type)][static_cast<size_t>(atom)])
          residue.atoms.push_back({atom, {}, 0});
      chain.residues.push_back(std::move(residue));
    }
    structure.chains.push_back(std::move(chain));
  }
  return structure;
}

std::string errors_text(const Folded& folded) {
  require(folded.errors.defined(), "fold", "errors of aligned points must be in the result: got ", folded.name,
          " without them; set FoldOptions::keeps_errors, with a model that has the head");
  const at::Tensor errors = folded.errors.to(at::kDouble).contiguous();
  const auto* values = errors.const_data_ptr<double>();
  std::string text = "[{\"predicted_aligned_error\": [";
  for (int64_t i = 0; i < errors.size(0); ++i) {
    text += i == 0 ? "[" : ", [";
    for (int64_t j = 0; j < errors.size(1); ++j) {
      if (j > 0) text += ", ";
      text += print_number(std::round(*values++ * 100) / 100);
    }
    text += "]";
  }
  return text + "], \"max_predicted_aligned_error\": " + print_number(kMaxError) + "}]\n";
}

nlohmann::ordered_json summary_of(const Folded& folded) {
  const auto rounded = [](double value) { return std::round(value * 1e4) / 1e4; };
  nlohmann::ordered_json line{{"name", folded.name},
                              {"residues", folded.residues()},
                              {"plddt", rounded(folded.plddt)},
                              {"ptm", nullptr},
                              {"passes", folded.passes},
                              {"seconds", std::round(folded.seconds * 1e3) / 1e3},
                              {"pair_bytes", folded.pair_bytes},
                              {"peak_bytes", folded.peak_bytes},
                              {"plan", nlohmann::ordered_json::array()}};
  if (folded.ptm) line["ptm"] = rounded(*folded.ptm);
  return line;
}

void write_tensors(const Folded& folded, const std::string& path) {
  std::map<std::string, at::Tensor> tensors{
      {"positions", folded.positions}, {"atom_mask", folded.atom_mask}, {"atom_plddt", folded.atom_plddt}};
  if (folded.errors.defined()) tensors["errors"] = folded.errors;
  checkpoint::write_safetensors(path, tensors);
}

}  // namespace colossal::fold
