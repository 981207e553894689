// The chains that `colossal fold` folds, and the files that it writes.
//
//   const std::vector<FoldRecord> records = read_fold_records("", "many.fasta", "structures");
//   const FoldFiles files("structures", "", "", /*models=*/1);
//   files.write(folded, 0);                                            // structures/NAME.cif
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/fold/fold.h"

namespace colossal::cli {

/// A record to fold.
struct FoldRecord {
  fold::Sequence sequence;
  std::string place;  ///< begins messages: "many.fasta:3: "
};

/// Returns the records of `input`, or if that is empty that of `sequence`. `input` is a FASTA file, or a file of
/// features whose name ends in .safetensors. A sequence has the name of the file `to` without its ending, or if that is
/// a folder, "sequence". Errors: those of protein::read_fasta() and protein::chains_of().
std::vector<FoldRecord> read_fold_records(const std::string& sequence, const std::string& input, const std::string& to);

/// Returns the files of alignments of a record, one of `all`, of those that --msa names: the files, or those of folders
/// that begin with the record's name. Errors ("fold"): a file, and there are several records; no file for the record.
std::vector<std::string> alignments_of_record(const std::vector<std::string>& given, const FoldRecord& record,
                                              const std::vector<FoldRecord>& all);

/// Returns a notice of residues that get no atoms; "" = there are none.
std::string notice_of_unknown(const fold::Sequence& sequence);

/// The files of results: a structure for each, and if asked for the errors of aligned points and tensors.
class FoldFiles {
 public:
  /// `to`, `errors` and `tensors` are files, or all folders; the last two may be empty. With several `models` names end
  /// in _rank1, _rank2 and so on. Errors ("fold"): `to` is neither a folder nor a name that ends in .cif or .pdb; it is
  /// a file, and there are several models.
  FoldFiles(std::string to, std::string errors, std::string tensors, size_t models);

  /// Checks the records. Errors ("fold"): several, and `to` is a file. Errors ("pdb"): a file that ends in .pdb cannot
  /// have so many chains, residues or atoms.
  void check(const std::vector<FoldRecord>& records) const;
  /// Creates the folders, and those of files, before anything is folded.
  void make_folders() const;
  /// Returns true if all files of a record are there.
  bool are_there(const fold::Sequence& sequence) const;
  /// Writes the files of a result, the structure last, so that its file shows that all are complete. `rank` is the
  /// place of its model from 0. Returns the path of the structure.
  std::string write(const fold::Folded& folded, size_t rank) const;

 private:
  std::string path_of(const std::string& place, const std::string& name, size_t rank, const char* ending) const;

  std::string to_, errors_, tensors_;
  size_t models_;
  bool is_folder_;
};

/// Returns the order of results of one chain, the best first: by ptm, or if one has none by plddt.
std::vector<size_t> ranked(const std::vector<fold::Folded>& results);

}  // namespace colossal::cli
