// Writes a Hugging Face folder whose vocabulary has further tokens. The weights are copied tensor by tensor; only
// tables with a row per token grow.
//
//   const run::Expanded done =
//       run::expand_vocabulary({.from = "base", .tokenizer = "new-tokenizer", .to = "out"}, program.models);
//   done.expansion.count;                                              // rows that were added, as in expansion.json
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "colossal/models/registry.h"
#include "colossal/run/trained_parameters.h"

namespace colossal::run {

/// The values of new rows.
enum class NewRows : uint8_t {
  Mean,   ///< the mean of the old rows of the ids that the old tokenizer gives for the bytes of the new piece
  All,    ///< the mean of the rows of all old ids
  Drawn,  ///< normal variates around that mean, with 1e-9 times the covariance of these rows (transformers'
          ///< `mean_resizing`)
};

/// The names of NewRows in the order of its values: mean, all, drawn.
std::vector<std::string> new_rows_names();

struct ExpansionRequest {
  std::string from{};       ///< Hugging Face folder
  std::string tokenizer{};  ///< folder or file of the new tokenizer
  std::string to{};         ///< folder to write, which must not exist
  NewRows rows = NewRows::Mean;
  uint64_t seed = 0;  ///< seed of NewRows::Drawn
};

struct Expanded {
  Expansion expansion;     ///< the contents of expansion.json
  int64_t vocabulary = 0;  ///< rows of each table
  int64_t unwritable =
      0;  ///< new pieces that the old tokenizer cannot write; with NewRows::Mean they get the mean of all
};

/// Writes the folder `to`: the model of `from` for the tokenizer `tokenizer`, whose first ids must be those of the old
/// one.
///
/// Rows: old rows keep their bits and dtype. Each new id gets one row in every table with a row per token: embedding,
///       untied head, bias of the head, and the copies of them that the folder holds. A model may have more rows than
///       its old tokenizer has ids. New ids that fall on such rows of padding get new values; the other rows of padding
///       stay, and none is added. Old ids beyond the tables (tokenizers with more ids than the model has rows) get
///       rows, too.
/// Mean: the old tokenizer encodes the piece as a part of a text, without a space in front and without special tokens
///       (text::make_part_tokenizer). It cannot write a piece whose ids stand for other bytes or have no row; new
///       special tokens, which have no bytes, count among these.
/// Values: sums in fp64, rounded once to the table's dtype. Drawn values depend on seed, table, id and features alone.
/// Files: other tensors are copied as they are, into files of the same names. config.json gets the vocabulary, the
///        begin token and the further end token of the new tokenizer; other files of text stay (write_companions()).
///        The folder also gets expansion.json. config.json is written last, so an incomplete folder is not taken for a
///        model.
/// Memory: one table at a time, in addition to mapped files.
/// Errors ("expand"), before anything is written: `from` is a run folder, a GGUF file or quantized; it has no
///                    tokenizer; `to` exists; a new tokenizer with fewer ids, without a new one, or with another piece
///                    for an old id (the message names the first one and both pieces); a table of another size than
///                    vocab_size. Errors of models::Registry::shape_of(), make_tokenizer() and WeightFolder. ("file"):
///                    a failed write.
Expanded expand_vocabulary(const ExpansionRequest& request, const models::Registry& models);

/// Returns the rows [first, first + sources.size()) of a table [rows, ...] after an expansion, in its dtype. The first
/// `first` rows are those of old ids. `sources`: the old ids for the mean of each new row; an empty list means all ids.
/// NewRows other than Mean read only their number.
at::Tensor new_rows_of(const at::Tensor& table, int64_t first, const std::vector<std::vector<int64_t>>& sources,
                       NewRows rows, uint64_t seed);

}  // namespace colossal::run
