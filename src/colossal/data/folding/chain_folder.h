// A folder of structures whose protein chains a folding model learns, with their alignments and templates.
//
//   const auto folder = data::ChainFolder::open("chains", {.index = "runs/folds/chains.jsonl"});
//   for (const std::string& notice : folder.notices) std::cout << notice << "\n";
//   const data::ChainContents first = folder.read(0);
//   std::cout << folder.chains[0].name << " has " << first.structure.residues.size() << " residues\n";
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "colossal/data/folding/features.h"
#include "colossal/data/streams/record_source.h"
#include "colossal/protein/structure.h"

namespace colossal::data {

/// A protein chain of a file. All paths are within the folder.
struct KnownChain {
  std::string name;                     ///< the path of the file without its endings, `_` and the chain's id: "x_A"
  std::string file;                     ///< path of the structure
  std::string id;                       ///< the authors' id of the chain
  std::string sequence;                 ///< letters of all residues
  double resolution = 0;                ///< of the structure, in Angstrom; 0 = not known
  std::vector<std::string> alignments;  ///< paths of files in A3M and Stockholm
  std::vector<std::string> templates;   ///< paths of structures
};

/// What the files of a chain hold.
struct ChainContents {
  FoldingChain known;                 ///< sequence, alignment and templates
  protein::StructureChain structure;  ///< true places of the atoms
  std::vector<std::string> notices;   ///< of these files, for the user
};

struct ChainFolderOptions {
  OnError on_error = OnError::Refuse;  ///< Skip = structures and templates that cannot be read are left out
  std::string index{};                 ///< file that remembers the structures (indexed_files()); empty = none
};

/// The chains of a folder: those of `x.cif` and `x.pdb`, which may end in .gz, in any depth. The files of chain A of
/// `x` lie in the folder `x_A` beside it: alignments (.a3m, .sto, also with .gz) and templates (.cif, .pdb, also with
/// .gz). An alignment may also be the file `x_A.a3m` or `x_A.sto`. Chains without an alignment have their sequence
/// alone.
struct ChainFolder {
  std::string path;
  ChainFolderOptions options;
  std::vector<KnownChain> chains;    ///< in the order of their files and of the chains in them
  std::vector<std::string> notices;  ///< what was left out, and structures without a resolution

  /// Reads the index or the structures. Errors ("data"): there is no such folder; no chain; with OnError::Refuse the
  /// first structure that cannot be read, or with a name that another one has. Errors: indexed_files().
  /// Memory: the sequences and names. Cost: indexed_files().
  static ChainFolder open(const std::string& path, const ChainFolderOptions& options);

  /// Returns the indices of the chains to train with and of those held out. A chain is held out with probability
  /// `held_out`, drawn from its sequence, so equal sequences are on one side.
  std::pair<std::vector<int64_t>, std::vector<int64_t>> split(double held_out) const;

  /// Reads the files of a chain. `has_alignment` and `has_templates` say whether those are read.
  /// Errors: the structure cannot be read, or was changed since open(); those of protein::read_alignment() and
  ///         require_query(); with OnError::Refuse those of templates.
  ChainContents read(int64_t index, bool has_alignment, bool has_templates) const;
};

/// Returns true if a folder has structures of proteins in any depth. Cost: lists the folder up to the first one.
bool is_chain_folder(const std::string& path);

}  // namespace colossal::data
