// Structures in the format of the Protein Data Bank, version 3.3: 80 columns a line.
#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/protein/structure_checks.h"

namespace colossal::protein {
namespace {

constexpr size_t kMaxPdbChains = 62, kMaxPdbResidues = 9999, kMaxPdbAtoms = 99999;

std::string right(const std::string& text, size_t width) {
  return std::string(width - std::min(width, text.size()), ' ') + text;
}

std::string left(const std::string& text, size_t width) {
  return text + std::string(width - std::min(width, text.size()), ' ');
}

/// Returns a number in `width` columns. Errors ("pdb"): it does not fit.
std::string column(double number, int decimals, size_t width) {
  const std::string text = written_number(number, decimals);
  require(text.size() <= width, "pdb", "a position or B factor of a PDB file must fit ", width, " columns: got ", text,
          "; write mmCIF (.cif)");
  return right(text, width);
}

/// Returns the rows of SEQRES, 13 residues each.
std::string sequence_rows(const StructureChain& chain, const std::string& id) {
  constexpr size_t kPerRow = 13;
  std::string text;
  for (size_t begin = 0; begin < chain.residues.size(); begin += kPerRow) {
    std::string row = "SEQRES " + right(std::to_string(begin / kPerRow + 1), 3) + " " + id + " " +
                      right(std::to_string(chain.residues.size()), 4) + " ";
    for (size_t i = begin; i < std::min(begin + kPerRow, chain.residues.size()); ++i)
      row += std::string(" ") + name_of_type(chain.residues[i].type);
    text += left(row, 80) + "\n";
  }
  return text;
}

/// Returns the rows of a chain's atoms. `serial` counts atoms over all chains.
std::string atom_rows(const StructureChain& chain, const std::string& id, int64_t& serial) {
  std::string text, place;
  for (size_t i = 0; i < chain.residues.size(); ++i)
    for (const StructureAtom& atom : chain.residues[i].atoms) {
      place = std::string(name_of_type(chain.residues[i].type)) + " " + id + right(std::to_string(i + 1), 4);
      text += "ATOM  " + right(std::to_string(++serial), 5) + "  " + left(name_of_atom37(atom.atom), 3) + " " + place +
              "    " + column(atom.position.x, 3, 8) + column(atom.position.y, 3, 8) + column(atom.position.z, 3, 8) +
              column(1, 2, 6) + column(atom.b_factor, 2, 6) + "          " +
              right(std::string(1, element_of_atom37(atom.atom)), 2) + "  \n";
    }
  if (!text.empty()) text += left("TER" + std::string(14, ' ') + place, 80) + "\n";
  return text;
}

}  // namespace

void require_pdb_sizes(const Structure& structure) {
  require(structure.chains.size() <= kMaxPdbChains, "pdb", "a PDB file must have at most 62 chains: got ",
          structure.chains.size(), "; write mmCIF (.cif)");
  size_t atoms = 0;
  for (const StructureChain& chain : structure.chains) {
    require(chain.residues.size() <= kMaxPdbResidues, "pdb",
            "a chain of a PDB file must have at most 9,999 residues: got ", chain.residues.size(), " in chain ",
            chain.id, "; write mmCIF (.cif)");
    for (const StructureResidue& residue : chain.residues) atoms += residue.atoms.size();
  }
  require(atoms <= kMaxPdbAtoms, "pdb", "a PDB file must have at most 99,999 atoms: got ", atoms,
          "; write mmCIF (.cif)");
}

std::string pdb_text(const Structure& structure) {
  require_pdb_sizes(structure);
  require_writable(structure, "pdb");
  const bool has_short_ids = std::all_of(structure.chains.begin(), structure.chains.end(),
                                         [](const StructureChain& chain) { return chain.id.size() == 1; });
  std::string sequences, atoms;
  int64_t serial = 0;
  for (size_t i = 0; i < structure.chains.size(); ++i) {
    const std::string id = has_short_ids ? structure.chains[i].id : chain_id(static_cast<int64_t>(i));
    sequences += sequence_rows(structure.chains[i], id);
    atoms += atom_rows(structure.chains[i], id, serial);
  }
  return sequences + atoms + left("END", 80) + "\n";
}

}  // namespace colossal::protein
