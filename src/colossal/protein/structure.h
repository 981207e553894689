// A structure of chains in memory, and its files.
//
//   protein::Structure structure{.name = "one"};
//   structure.chains.push_back(protein::chain_of_atom37(protein::chain_id(0), types, positions, exists, confidence));
//   protein::write_structure(structure, "out.cif");
//
// Residues are numbered from 1 in each chain. Two writes of one structure give equal bytes.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "colossal/protein/residues.h"

namespace colossal::protein {

struct StructureAtom {
  int atom = 0;         ///< slot of atom37
  Point position;       ///< in Angstrom
  double b_factor = 0;  ///< of predictions pLDDT, 0 to 100
};

struct StructureResidue {
  int type = kUnknownType;           ///< 0 to 19, or kUnknownType
  std::vector<StructureAtom> atoms;  ///< in the order of atom37; empty = no known position
};

struct StructureChain {
  std::string id;
  std::vector<StructureResidue> residues;
};

struct Structure {
  std::string name;
  std::vector<StructureChain> chains;
  double resolution = 0;             ///< of the experiment, in Angstrom; 0 = not known, as of predictions
  std::vector<std::string> notices;  ///< what was read otherwise than written, for the user
};

/// Returns the id of a chain by its position: A to Z, a to z, 0 to 9, then of two characters, AA, AB and so on.
std::string chain_id(int64_t index);

/// Returns a chain of N residues from arrays as models give them. `types` is [N], the others [N, 37]. An atom is taken
/// if `exists` is true. Errors ("protein"): arrays of other sizes, a type that is none.
StructureChain chain_of_atom37(std::string id, std::span<const int64_t> types, std::span<const Point> positions,
                               std::span<const bool> exists, std::span<const double> b_factors);

/// Returns the letters of a chain's types.
std::string sequence_of(const StructureChain& chain);

/// Returns the mean of the B factors of the CA atoms, which is the pLDDT of a prediction; 0 if there are none.
double mean_ca_b_factor(const Structure& structure);

/// Returns a file in mmCIF: `entity_poly_seq` with all residues, `atom_site` whose rows begin with ATOM, and
/// `ma_qa_metric_local` with the B factor of each CA. Equal chains are one entity.
/// Errors ("mmcif"): no atom, a chain without an id or with that of another, a value that is not finite.
std::string mmcif_text(const Structure& structure);

/// Returns a file in the format of the Protein Data Bank, with SEQRES. If an id of a chain has several characters,
/// chains get those of chain_id() by their position.
/// Errors ("pdb"): the same as mmcif_text(); more than 62 chains, 9,999 residues in a chain or 99,999 atoms; a position
/// or B factor too large for its columns.
std::string pdb_text(const Structure& structure);

/// Checks that the PDB format holds so many chains, residues and atoms. Errors ("pdb"): those of pdb_text().
void require_pdb_sizes(const Structure& structure);

/// Checks the ending of a path, as write_structure() does. Errors ("protein"): another ending than .cif and .pdb.
void require_structure_ending(const std::string& path);

/// Writes a file by the ending of its path, .cif or .pdb, as AtomicFile. Errors: the same as
/// require_structure_ending(), mmcif_text(), pdb_text() and AtomicFile.
void write_structure(const Structure& structure, const std::string& path);

}  // namespace colossal::protein
