#include "colossal/protein/read_chain.h"

#include <algorithm>
#include <array>
#include <set>

namespace colossal::protein {
namespace {

constexpr std::string_view kSelenomethionine = "MSE";

/// Returns the slot of an atom, -1 if the type lacks it.
int slot_of(const ReadAtom& atom, int type) {
  const bool is_selenium = atom.residue == kSelenomethionine && atom.name == "SE";
  const int slot = atom37_of_name(is_selenium ? "SD" : atom.name);
  if (slot < 0) return -1;
  const bool exists = type == kUnknownType
                          ? slot <= kAtomO  // the slots of N, CA, C, CB and O
                          : residue_tables().atom37_exists[static_cast<size_t>(type)][static_cast<size_t>(slot)];
  return exists ? slot : -1;
}

/// Returns the name of the residue whose atoms are taken: of those with the highest occupancy, the first.
const std::string& chosen_name(const ReadResidue& residue) {
  const ReadAtom* best = nullptr;
  for (const ReadAtom& atom : residue.atoms)
    if (best == nullptr || atom.occupancy > best->occupancy) best = &atom;
  return best == nullptr ? residue.name : best->residue;
}

StructureResidue chosen_residue(const ReadResidue& residue) {
  const std::string& name = chosen_name(residue);
  StructureResidue chosen{type_of_residue(name), {}};
  std::array<const ReadAtom*, kAtom37> best{};
  for (const ReadAtom& atom : residue.atoms) {
    const int slot = atom.residue == name ? slot_of(atom, chosen.type) : -1;
    if (slot < 0) continue;
    const ReadAtom*& known = best[static_cast<size_t>(slot)];
    if (known == nullptr || atom.occupancy > known->occupancy) known = &atom;
  }
  for (int slot = 0; slot < kAtom37; ++slot)
    if (const ReadAtom* atom = best[static_cast<size_t>(slot)])
      chosen.atoms.push_back({slot, atom->position, atom->b_factor});
  return chosen;
}

}  // namespace

StructureChain chosen_chain(const ReadChain& chain) {
  StructureChain chosen{chain.id, {}};
  chosen.residues.reserve(chain.residues.size());
  for (const ReadResidue& residue : chain.residues) chosen.residues.push_back(chosen_residue(residue));
  return chosen;
}

void add_chains(Structure& structure, const std::vector<ReadChain>& chains) {
  std::set<std::string> ids;
  for (const ReadChain& chain : chains) ids.insert(chain.id);
  for (const ReadChain& chain : chains) {
    structure.chains.push_back(chosen_chain(chain));
    if (ids.size() < chains.size()) structure.chains.back().id = chain.place;
  }
}

}  // namespace colossal::protein
