// The parameters that a run trains ([training] parameters), and the record of the rows that `colossal expand` added to
// the tables of a folder, which a run may train alone.
//
//   write_file(out + "/" + run::kExpansionFile, json_line(to_json_object(expansion)));
//   run.adapter = run::with_trained_parameters(config, std::move(run.adapter), run.shape);  // "new-rows" reads it
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/models/shape.h"
#include "colossal/nn/adapter.h"
#include "colossal/run/config.h"

namespace colossal::run {

inline constexpr char kExpansionFile[] = "expansion.json";

/// The contents of expansion.json: the rows that were added, `count` rows from `first` on, and the names of the tensors
/// of the folder that got them.
struct Expansion {
  int64_t first = 0, count = 0;
  std::vector<std::string> names;
  void fields(Fields& f);

  /// Returns expansion.json of a folder. Errors ("training"): there is none, or it is damaged.
  static Expansion read(const std::string& folder);
};

/// Returns the names of the parameters of a model that have a row per token, without the name of the model: the table
/// of the embedding, the weight of an untied head over the vocabulary, and the head's bias. Empty if the model reads no
/// text. Cost: the model is declared once, without memory.
std::vector<std::string> token_tables(const models::ModelShape& shape);

/// Returns `adapter`, which treats the parameters in addition as config.training.parameters says. With "embeddings"
/// only the token_tables() train, with "new-rows" only their rows that expansion.json of model.from names. Checkpoints
/// save all parameters. With "all" it is `adapter`, or without one a treatment that freezes the language model within
/// the model (models::FrozenLanguageModel).
/// Errors ("training"): an adapter that changes the model; a model without a token table. With "new-rows": no
///                      model.from, a folder without expansion.json, or one of another vocabulary.
nn::Adapter with_trained_parameters(const Config& config, nn::Adapter adapter, const models::ModelShape& shape);

}  // namespace colossal::run
