#include "colossal/protein/structure.h"

#include <cmath>
#include <set>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/file_name.h"
#include "colossal/protein/structure_checks.h"

namespace colossal::protein {

std::string chain_id(int64_t index) {
  static constexpr std::string_view kIds = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
  constexpr auto kCount = static_cast<int64_t>(kIds.size());
  std::string id(1, kIds[static_cast<size_t>(index % kCount)]);
  for (int64_t rest = index / kCount; rest > 0; rest /= kCount)
    id.insert(id.begin(), kIds[static_cast<size_t>(--rest % kCount)]);
  return id;
}

StructureChain chain_of_atom37(std::string id, std::span<const int64_t> types, std::span<const Point> positions,
                               std::span<const bool> exists, std::span<const double> b_factors) {
  const size_t atoms = types.size() * kAtom37;
  require(positions.size() == atoms && exists.size() == atoms && b_factors.size() == atoms, "protein",
          "positions, masks and B factors of a chain must have ", atoms, " atoms: got ", positions.size(), ", ",
          exists.size(), " and ", b_factors.size());
  StructureChain chain{std::move(id), std::vector<StructureResidue>(types.size())};
  for (size_t i = 0; i < types.size(); ++i) {
    require(types[i] >= 0 && types[i] <= kUnknownType, "protein", "a residue type must be from 0 to ", kUnknownType,
            ": got ", types[i]);
    StructureResidue& residue = chain.residues[i];
    residue.type = static_cast<int>(types[i]);
    for (size_t atom = 0; atom < kAtom37; ++atom)
      if (const size_t at = i * kAtom37 + atom; exists[at])
        residue.atoms.push_back({static_cast<int>(atom), positions[at], b_factors[at]});
  }
  return chain;
}

std::string sequence_of(const StructureChain& chain) {
  std::string letters;
  for (const StructureResidue& residue : chain.residues) letters += letter_of_type(residue.type);
  return letters;
}

double mean_ca_b_factor(const Structure& structure) {
  double sum = 0, count = 0;
  for (const StructureChain& chain : structure.chains)
    for (const StructureResidue& residue : chain.residues)
      for (const StructureAtom& atom : residue.atoms)
        if (atom.atom == kAtomCa) sum += atom.b_factor, ++count;
  return count > 0 ? sum / count : 0;
}

void require_writable(const Structure& structure, const char* component) {
  std::set<std::string> ids;
  int64_t atoms = 0;
  for (const StructureChain& chain : structure.chains) {
    require(!chain.id.empty() && ids.insert(chain.id).second, component,
            "ids of chains must differ and have a letter: got `", chain.id, "`; name chains with chain_id()");
    for (size_t i = 0; i < chain.residues.size(); ++i)
      for (const StructureAtom& atom : chain.residues[i].atoms) {
        const Point& at = atom.position;
        const bool is_finite =
            std::isfinite(at.x) && std::isfinite(at.y) && std::isfinite(at.z) && std::isfinite(atom.b_factor);
        if (!is_finite)
          throw Error(component, concat("positions and B factors must be finite: got ", at.x, ", ", at.y, ", ", at.z,
                                        " and ", atom.b_factor, " at atom ", name_of_atom37(atom.atom), " of residue ",
                                        i + 1, " of chain ", chain.id, "; look for the operator that overflows"));
        ++atoms;
      }
  }
  require(atoms > 0, component, "a structure must have at least one atom: got none; give a chain with known residues");
}

void require_structure_ending(const std::string& path) {
  require(has_ending(path, ".cif") || has_ending(path, ".pdb"), "protein",
          "the file of a structure must end in .cif or .pdb: got ", path, "; rename it");
}

void write_structure(const Structure& structure, const std::string& path) {
  require_structure_ending(path);
  write_file(path, has_ending(path, ".pdb") ? pdb_text(structure) : mmcif_text(structure));
}

}  // namespace colossal::protein
