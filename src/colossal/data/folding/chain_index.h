// What a run folder remembers of a folder of structures, so that not every start reads all of them.
//
//   for (const data::IndexedFile& file : data::indexed_files("chains", {"1abc.cif"}, "runs/folds/chains.jsonl"))
//     for (const data::IndexedChain& chain : file.chains) use(chain.id, chain.sequence);
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace colossal::data {

struct IndexedChain {
  std::string id;
  std::string sequence;
  int64_t placed = 0;  ///< residues with N, CA and C
};

/// A file of the folder.
struct IndexedFile {
  std::string name;                  ///< path within the folder
  double resolution = 0;             ///< in Angstrom; 0 = not known
  std::vector<IndexedChain> chains;  ///< those of proteins
  std::vector<std::string> notices;  ///< of read_structure()
  std::string fault;                 ///< why the file cannot be read; empty = it can
};

/// Reads the structures `names` of a folder, and returns what is known of each, in their order. `index` is a file with
/// what an earlier call found: one JSON object a line, the first with the folder. A structure is read again if its
/// stamp (file_stamp()) is another one or not known. The index is then written anew, as AtomicFile, with these names
/// alone. If it cannot be read or written, nothing is remembered. An empty path = no index. Several ranks may use one
/// index at the same time.
/// Cost:   reads the files that changed, with up to 8 threads.
/// Errors ("protein"): a build without gemmi.
std::vector<IndexedFile> indexed_files(const std::string& folder, const std::vector<std::string>& names,
                                       const std::string& index);

}  // namespace colossal::data
