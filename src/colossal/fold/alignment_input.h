// Input of models that read alignments and templates.
//
//   const AlignmentFiles files{.alignments = {"x.a3m"}, .templates = "known"};
//   const fold::FoldInput input = fold::alignment_input({"x", {sequence}}, files, shape, {.clusters = 512});
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "colossal/data/folding/features.h"
#include "colossal/fold/fold_input.h"

namespace colossal::fold {

/// What is known of a chain.
struct AlignmentFiles {
  std::vector<std::string> alignments{};  ///< A3M or Stockholm files; empty = the sequence alone
  std::string templates{};                ///< folder of structures; empty = none
  std::string place{};                    ///< where the sequence is from, for messages: "x.fasta:1"
};

/// Which rows of alignments a pass reads: the keys of [folding].
struct AlignmentRows {
  int64_t clusters = 512;  ///< of the clustered alignment, with the query
  int64_t extra = 1024;    ///< further rows
  double masked = .15;     ///< share of letters that are masked
};

/// Reads and checks the files, and returns the input of a model of this shape. Alignments are read again when the chain
/// is folded, so that those of many chains are not in memory together.
/// Errors: those of check_sequence(), protein::read_alignment(), protein::require_query() and data::read_templates().
FoldInput alignment_input(const Sequence& sequence, const AlignmentFiles& files, const models::ModelShape& shape,
                          const AlignmentRows& rows);

/// Returns the input of a chain that `read` reads: once to check it, and again when it is folded. Errors: those of
/// `read` and check_sequence(); ("fold") a model that reads no alignments.
FoldInput chain_input(const std::function<data::FoldingChain()>& read, const models::ModelShape& shape,
                      const AlignmentRows& rows);

/// Returns the chain of a file that `colossal features` wrote, with the name of the file. Errors: those of
/// run::read_features().
Sequence sequence_of_features(const std::string& path);

/// Returns the input of such a file. Errors: those of sequence_of_features() and check_sequence(); ("fold") a model
/// that reads no alignments.
FoldInput feature_input(const std::string& path, const models::ModelShape& shape);

/// Returns the files of `folder` that belong to the record `name`, one of `names`: those whose names begin with it and
/// go on with neither letter nor digit. A file that begins with several names belongs to the longest.
/// Errors: those of data::visible_files().
std::vector<std::string> alignments_of(const std::string& folder, const std::string& name,
                                       const std::vector<std::string>& names);

}  // namespace colossal::fold
