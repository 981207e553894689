#include "colossal/run/resolve_shape.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/base/model_path.h"
#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/checkpoint/ldm/file.h"
#include "colossal/checkpoint/quantized/folder.h"
#include "colossal/checkpoint/strided_weights.h"
#include "colossal/formats/gguf_file.h"
#include "colossal/models/registry.h"
#include "colossal/run/base_codes.h"
#include "colossal/run/data.h"
#include "colossal/run/model_source.h"
#include "colossal/run/stored_config.h"

namespace colossal::run {
namespace {

/// Returns true for a run whose folder has no config.json: one of an older version, of a preset, or of an architecture
/// that no folder can have.
bool is_bare_run(const std::string& path) {
  std::error_code ignored;
  return is_run(path) && !std::filesystem::exists(path + "/config.json", ignored);
}

void check_path(const std::string& path) {
  if (checkpoint::ldm_part(path)) return;
  require_model_path(path, "model");
  if (!is_run(path)) check_is_model(path);
}

bool is_number_type(std::string_view type) { return type == "F32" || type == "F16" || type == "BF16"; }

constexpr char kTrainAdapters[] = "adapter.kind = \"lora\"";

/// Checks that the weights of a GGUF file are numbers, because training changes all of their digits.
void check_gguf_numbers(const std::string& path) {
  const formats::GgufFile file(path);
  for (const formats::GgufTensor& tensor : file.tensors()) {
    const std::string_view type = tensor.type->name;
    require(is_number_type(type), "model",
            "model.from must be a file whose weights are not quantized (F32, F16 or BF16): got ", path, " with ",
            printable(tensor.name), " of type ", type,
            "; name the file of the model before quantization, write the weights as numbers with `colossal export "
            "--from ",
            path, " --to FOLDER`, or train adapters on them (", kTrainAdapters, ")");
  }
}

/// Returns config.json of a folder as it is.
nlohmann::json config_in_folder(const std::string& path) {
  if (const std::optional<checkpoint::LdmPart> part = checkpoint::ldm_part(path)) return checkpoint::ldm_config(*part);
  if (checkpoint::is_strided_file(path)) return checkpoint::read_config(path);
  return read_json_object(model_folder(path) + "/config.json", "model");
}

void check_folder_numbers(const std::string& path) {
  const bool is_quantized = checkpoint::is_quantized(config_in_folder(path));
  require(!is_quantized, "model", "model.from must be a folder whose weights are not quantized: got ", path,
          ", whose config.json has a quantization_config; name the folder of the model before quantization, or write "
          "the weights as numbers with `colossal export --from ",
          path, " --to FOLDER`, or train adapters on them (", kTrainAdapters, ")");
}

/// Returns true if the config has the table [adapter] and trains adapters.
bool trains_adapters(const Config& config, const Program& program) {
  std::vector<OwnTable> tables = tables_of(program.adapters);
  const size_t own = tables.size();
  for (OwnTable& other : tables_of(program.objectives)) tables.push_back(std::move(other));
  read_tables(config, tables);
  for (size_t i = 0; i < own; ++i) {
    if (!has_table(config, tables[i].name) || !tables[i].keys.holds<LowRankKeys>()) continue;
    const auto keys = tables[i].keys.as<LowRankKeys>();
    if (keys.is_low_rank() || (keys.kind == "none" && !keys.from.empty())) return true;
  }
  return false;
}

}  // namespace

models::ModelShape resolve_shape(const models::ModelConfig& config, const Program& program, int64_t vocabulary) {
  if (config.from.empty()) return program.models.resolve(config, vocabulary);
  check_path(config.from);
  if (!is_bare_run(config.from)) return program.models.resolve_from(checkpoint::read_config(config.from), config);
  const models::ModelShape shape = resolve_model(stored_config(config.from), program).shape;
  const auto to_json = shape.architecture->hugging_face.to_json;
  return to_json ? program.models.resolve_from(to_json(shape), config) : program.models.resolve_from(shape, config);
}

bool has_numbers(const std::string& path) {
  if (is_run(path)) return true;
  if (!formats::is_gguf(path)) return !checkpoint::is_quantized(config_in_folder(path));
  const formats::GgufFile file(path);
  return std::all_of(file.tensors().begin(), file.tensors().end(),
                     [](const formats::GgufTensor& tensor) { return is_number_type(tensor.type->name); });
}

void check_training(const Config& config, const Program& program) {
  const std::string& from = config.model.from;
  if (from.empty()) return;
  check_path(from);
  if (is_bare_run(from)) return;
  if (trains_adapters(config, program)) {
    if (keeps_codes(config)) check_codes(config);
  } else {
    formats::is_gguf(from) ? check_gguf_numbers(from) : check_folder_numbers(from);
  }
  program.models.check_training_from(checkpoint::read_config(from));
}

}  // namespace colossal::run
