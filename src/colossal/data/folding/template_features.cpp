#include "colossal/data/folding/template_features.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/data/folding/feature_fields.h"
#include "colossal/protein/residues.h"
#include "colossal/protein/sequence_alignment.h"

namespace colossal::data {
namespace {

constexpr int64_t kFewestAtoms = 5;  // those of an alanine
constexpr int64_t kAtoms = protein::kAtom37;

const protein::StructureAtom* atom_of(const protein::StructureResidue& residue, int slot) {
  const auto atom = std::find_if(residue.atoms.begin(), residue.atoms.end(),
                                 [&](const protein::StructureAtom& other) { return other.atom == slot; });
  return atom == residue.atoms.end() ? nullptr : &*atom;
}

/// Returns true if the two last nitrogens of an arginine have each other's name: NH1 is the nearer one to CD.
bool has_exchanged_nitrogens(const protein::StructureResidue& residue, int nh1, int nh2) {
  if (residue.type != protein::type_of_letter('R')) return false;
  const auto *first = atom_of(residue, nh1), *second = atom_of(residue, nh2),
             *cd = atom_of(residue, protein::atom37_of_name("CD"));
  return first && second && cd &&
         protein::distance(first->position, cd->position) > protein::distance(second->position, cd->position);
}

/// Copies the atoms of a residue to those of residue `index` of the query. Returns their number.
int64_t copy_atoms(const protein::StructureResidue& residue, int64_t index, AlignedTemplate& aligned) {
  const int nh1 = protein::atom37_of_name("NH1"), nh2 = protein::atom37_of_name("NH2");
  const bool is_exchanged = has_exchanged_nitrogens(residue, nh1, nh2);
  for (const protein::StructureAtom& atom : residue.atoms) {
    const int slot = is_exchanged && atom.atom == nh1 ? nh2 : is_exchanged && atom.atom == nh2 ? nh1 : atom.atom;
    const auto place = static_cast<size_t>(index * kAtoms + slot);
    const std::array<double, 3> point{atom.position.x, atom.position.y, atom.position.z};
    for (size_t i = 0; i < point.size(); ++i) aligned.positions[place * 3 + i] = static_cast<float>(point[i]);
    aligned.mask[place] = 1;
  }
  return static_cast<int64_t>(residue.atoms.size());
}

/// Returns the letters with X for those that are none of the 20 types.
std::string known_letters(std::string_view sequence) {
  std::string letters;
  for (const char c : sequence) letters += protein::letter_of_type(protein::type_of_letter(c));
  return letters;
}

}  // namespace

AlignedTemplate aligned_template(std::string_view sequence, const FoldingTemplate& known) {
  const std::string query = known_letters(sequence), letters = protein::sequence_of(known.chain);
  const auto pairs = protein::align_sequences(query, letters);
  AlignedTemplate aligned{.aligned = static_cast<int64_t>(pairs.size())};
  require(10 * pairs.size() >= query.size(), "template", known.name,
          " must align with at least a tenth of the query: got ", pairs.size(), " of ", query.size(),
          " residues; remove this template");
  aligned.types.resize(query.size(), protein::kGapType);
  aligned.positions.resize(query.size() * kAtoms * 3);
  aligned.mask.resize(query.size() * kAtoms);
  int64_t atoms = 0;
  for (const auto& [in_query, in_template] : pairs) {
    const auto& residue = known.chain.residues[static_cast<size_t>(in_template)];
    aligned.types[static_cast<size_t>(in_query)] = residue.type;
    aligned.equal += query[static_cast<size_t>(in_query)] == letters[static_cast<size_t>(in_template)] ? 1 : 0;
    atoms += copy_atoms(residue, in_query, aligned);
  }
  require(atoms >= kFewestAtoms, "template", known.name, " must have at least ", kFewestAtoms,
          " atoms where it aligns with the query: got ", atoms, "; remove this template");
  return aligned;
}

PseudoBeta pseudo_beta(const at::Tensor& types, const at::Tensor& positions, const at::Tensor& mask) {
  const at::Tensor is_glycine = types == protein::type_of_letter('G');
  return {.positions = at::where(is_glycine.unsqueeze(-1), positions.select(-2, protein::kAtomCa),
                                 positions.select(-2, protein::kAtomCb)),
          .mask = at::where(is_glycine, mask.select(-1, protein::kAtomCa), mask.select(-1, protein::kAtomCb))};
}

void add_templates(tensor::Batch& batch, std::span<const AlignedTemplate> templates, const ColumnRange& range) {
  const auto count = static_cast<int64_t>(std::max<size_t>(templates.size(), 1));
  const int64_t residues =
      templates.empty() ? range.first + range.size : static_cast<int64_t>(templates[0].types.size());
  const at::Tensor types = at::zeros({1, count, residues}, at::kLong), present = at::zeros({1, count}, at::kFloat);
  const at::Tensor positions = at::zeros({1, count, residues, kAtoms, 3}, at::kFloat);
  const at::Tensor mask = at::zeros({1, count, residues, kAtoms}, at::kFloat);
  for (size_t i = 0; i < templates.size(); ++i) {
    const AlignedTemplate& known = templates[i];
    require(static_cast<int64_t>(known.types.size()) == residues && range.first + range.size <= residues, "template",
            "templates must have the residues of one query: got ", known.types.size(), " and ", residues,
            " residues for residues ", range.first, " to ", range.first + range.size - 1);
    const auto copy = [i](const auto& values, const at::Tensor& field) {
      using Value = typename std::decay_t<decltype(values)>::value_type;
      std::copy(values.begin(), values.end(), field.mutable_data_ptr<Value>() + i * values.size());
    };
    copy(known.types, types);
    copy(known.positions, positions);
    copy(known.mask, mask);
    present.select(1, static_cast<int64_t>(i)).fill_(1);
  }
  const PseudoBeta beta = pseudo_beta(types, positions, mask);
  batch.add("template_mask", feature_of(present));
  const std::pair<const char*, at::Tensor> fields[] = {{"template_aatype", types},
                                                       {"template_all_atom_positions", positions},
                                                       {"template_all_atom_masks", mask},
                                                       {"template_pseudo_beta", beta.positions},
                                                       {"template_pseudo_beta_mask", beta.mask}};
  for (const auto& [name, values] : fields)
    batch.add(name, feature_of(values.narrow(2, range.first, range.size).contiguous()));
}

}  // namespace colossal::data
