// Chains as files have them, and what both readers of structures make of them.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "colossal/protein/structure.h"
#include "colossal/protein/text_lines.h"

namespace colossal::protein {

constexpr double kLargestNumber = 1e6;  ///< places, occupancies and B factors are nearer to 0

/// An atom of a file, perhaps one of several at its place.
struct ReadAtom {
  std::string residue;  ///< three letters
  std::string name;
  double occupancy = 1;
  Point position;
  double b_factor = 0;
};

struct ReadResidue {
  std::string name;  ///< that of the sequence
  std::vector<ReadAtom> atoms;
};

struct ReadChain {
  std::string id;     ///< the authors'
  std::string place;  ///< the id that no other chain of the file has
  std::vector<ReadResidue> residues;
};

/// Returns the type of a residue's name: one of the 20, that of the residue which a modified one is made from, or
/// kUnknownType. Uses gemmi's table.
int type_of_residue(const std::string& name);

/// What a residue's name says about the chain that has it.
enum class ResidueKind { Other, Protein, Dna, Rna };
ResidueKind kind_of_residue(const std::string& name);

/// Returns the chain with one residue at each place of the sequence and one atom in each slot; see read_structure().
StructureChain chosen_chain(const ReadChain& chain);

/// Adds the chains. If two have one id, all get those of their places.
void add_chains(Structure& structure, const std::vector<ReadChain>& chains);

/// Readers of the two formats, from text without NUL bytes.
Structure read_mmcif(const TextFile& file);
Structure read_pdb(const TextFile& file);

}  // namespace colossal::protein
