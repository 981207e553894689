// The parts of a new Hugging Face folder that do not depend on the values of its weights: config.json, the tokenizer's
// files, templates and recommended options. They are kept from the model's source.
//
//   checkpoint::export_weights(to, saved.model->parameters(), external_names(shape),
//                              exported_config(saved, models, at::kHalf), world, max_file_bytes, at::kHalf);
//   write_companions(saved, to);
#pragma once
#include <ATen/core/ScalarType.h>

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "colossal/models/config.h"
#include "colossal/models/registry.h"
#include "colossal/models/shape.h"
#include "colossal/run/saved_model.h"
#include "colossal/text/tokenizer.h"

namespace colossal::run {

/// Returns config.json for a folder whose weights have this dtype.
///
/// With a source folder (SavedModel::source) it is the source's config.json, with the keys changed that describe
/// something else for this model than for the source. Keys that no family reads stay. quantization_config does not.
/// Without one it has the keys that the architecture writes.
/// The token ids are those of the source folder if its tokenizer is the model's. Otherwise, a model that writes text
/// gets eos_token_id and bos_token_id of its tokenizer, because the defaults of config classes are ids of other tokens.
/// Errors: a config.json or tokenizer that cannot be read; an architecture without a Hugging Face mapping.
/// The files of a run (SavedModel::files) have precedence over the source folder.
nlohmann::json exported_config(const SavedModel& saved, const models::Registry& models, at::ScalarType dtype);

/// Writes the other files to the folder `to`, which must exist, over files of the same name.
///
/// Of the source folder: the files of text in it (.json, .jinja, .txt, .model, .tiktoken, .py, .md and licences) that
/// do not describe its weights, and its subfolders that hold only such files, e.g. additional_chat_templates. If the
/// model has another tokenizer, files of tokenizers, templates and generation_config.json are left out.
/// Of another tokenizer: its files and templates. A byte tokenizer gets a tokenizer.json (text::files_of_bytes()), a
/// GGUF file's vocabulary becomes one.
/// A run with files of its own (SavedModel::files) gives its own tokenizer, templates and generation_config.json.
/// Errors: files that cannot be copied or written.
void write_companions(const SavedModel& saved, const std::string& to);

/// Writes what a folder of adapters needs beside them to the folder `to`, which must exist: the tokenizer, the chat
/// templates and generation_config.json of a run. A run without files of its own (SavedModel::files) has none.
/// Errors: files that cannot be copied or written.
void write_adapter_companions(const SavedModel& saved, const std::string& to);
/// Changes `to`, the folder of a model into which the adapters of the folder `adapter` are merged, so that chats are
/// those of the adapters: their chat templates, if there are some, replace those of the model, and their end tokens
/// (end_ids_of_adapter()) join eos_token_id of generation_config.json. The tokenizer stays. `to` must not be `adapter`.
/// Errors: those of end_ids_of_adapter(); files that cannot be copied or written.
void take_companions_of_adapter(const std::string& adapter, const std::string& to);

/// The model of a run that starts, whose files its folder gets.
struct StartedModel {
  models::ModelConfig config{};  ///< [model] of the run; its source `from` need not be there if the run resumes
  models::ModelShape shape{};
  at::ScalarType dtype = at::kFloat;
  std::string tokenizer{};         ///< Config::tokenizer(); unused for a model that reads no text
  std::string chat_template{};     ///< OpenedData::chat_template
  std::vector<int64_t> end_ids{};  ///< OpenedData::end_ids
};

/// Writes the files with which a run folder is complete, each as an AtomicFile: config.json; of a model that reads text
/// the tokenizer's files and templates; of one that writes or scores text generation_config.json. They are those of the
/// folder model.from, with changes, or are made, as exported_config() and write_companions() describe. A tokenizer that
/// is a file is the only one that is stored. The template of the data becomes chat_template.jinja, without further
/// templates. The end ids join eos_token_id. If the run resumes, files that are there stay, apart from the template and
/// end ids of the data. config.json is left out if the architecture has no Hugging Face mapping, or if its keys do not
/// give the shape back. Then a run with a model.from needs it as long as it is used, and the result is a line for the
/// user about it.
/// Errors: a config.json or tokenizer that cannot be read; files that cannot be copied or written.
std::optional<std::string> write_model_files(const std::string& run_folder, const StartedModel& model,
                                             const models::Registry& models, bool resumes);

/// Returns the tokens at which generation from a folder stops (text::end_ids()), for the log:
/// "</s> (1), <|im_end|> (2)". Errors: those of text::end_ids().
std::string listed_end_tokens(const std::string& folder, const text::Tokenizer& tokenizer);

/// Returns the names of the files and folders that write_model_files() may make.
const std::vector<std::string>& model_file_names();
/// Writes the other files of the folder `from` to the folder `to`, for the tokenizer `tokenizer`, a folder or a file
/// whose ids include those of `from`. A file of another name gets the one that readers of folders look for. As
/// write_companions() of a model with another tokenizer, but generation_config.json stays, because its ids do. So does
/// the chat template of `from` if the tokenizer has none. Errors: files that cannot be copied or written.
void write_companions(const std::string& from, const std::string& tokenizer, const std::string& to);

}  // namespace colossal::run
