#include "colossal/run/stored_config.h"

#include <filesystem>

#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/base/run_folder.h"
#include "colossal/run/image_prompt_source.h"
#include "colossal/text/tokenizer.h"

namespace colossal::run {
namespace {

namespace fs = std::filesystem;

bool is_there(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

constexpr const char* kAdapterSource = "adapter.from";

bool names_path(const std::string& tokenizer) { return tokenizer != "auto" && tokenizer != "bytes"; }

/// Returns the place in the folder of the tokenizer with which a run started; empty = the folder has none. A file that
/// only its name identifies, such as cl100k_base.tiktoken, keeps its name.
std::string stored_tokenizer(const std::string& tokenizer, const std::string& folder) {
  if (names_path(tokenizer))
    if (const std::string file = folder + "/" + fs::path(tokenizer).filename().string();
        fs::path(tokenizer).has_filename() && fs::path(tokenizer).has_extension() && fs::is_regular_file(file))
      return file;
  return text::has_tokenizer(folder) ? folder : "";
}

/// Checks that a source is there, because it may have moved.
void check_source(const char* key, const std::string& path, const std::string& folder) {
  require(is_there(path), "run", "the run ", folder, " needs ", key, " = \"", path,
          "\": there is no such file or folder", fs::path(path).is_relative() ? " in the current folder" : "",
          "; put it back, or correct ", key, " in ", RunFolder(folder).config());
}

}  // namespace

bool is_run(const std::string& folder) { return is_there(RunFolder(folder).config()); }

Config stored_config(const std::string& folder) {
  auto config = read_config<Config>(RunFolder(folder).config());
  const bool needs_encoder = config.tables.text("adapter.kind") == kImagePromptKind;
  if (!needs_encoder && config.tables.values().contains(kAdapterSource))
    config.tables.put(kAdapterSource, {.value = std::string(), .where = "the run"});
  const std::string from = config.model.from, tokenizer = config.data.tokenizer;
  if (!from.empty() && is_there(folder + "/config.json")) config.model.from = folder;
  if (!from.empty() && config.model.from == from) check_source("model.from", from, folder);
  if (tokenizer == "bytes" || (tokenizer == "auto" && from.empty())) {
    config.data.tokenizer = "bytes";
  } else if (const std::string stored = stored_tokenizer(tokenizer, folder); !stored.empty()) {
    config.data.tokenizer = stored;
  } else if (names_path(tokenizer)) {
    check_source("data.tokenizer", tokenizer, folder);
  } else {
    // A model without texts needs none, so a source that is gone is an error of the one who opens the tokenizer.
    Config started = config;
    started.model.from = from;
    config.data.tokenizer = is_there(from) ? started.tokenizer() : from;
  }
  return config;
}

Config with_stored_sources(Config config, const std::string& folder) {
  if (!is_run(folder)) return config;
  const auto started = read_config<Config>(RunFolder(folder).config());
  const std::string from = config.model.from, tokenizer = config.data.tokenizer;
  const bool lacks_model = !from.empty() && from == started.model.from && !is_there(from);
  const bool lacks_tokenizer = tokenizer == started.data.tokenizer && ((tokenizer == "auto" && lacks_model) ||
                                                                       (names_path(tokenizer) && !is_there(tokenizer)));
  const std::string adapters = config.tables.text(kAdapterSource).value_or("");
  const bool lacks_adapters =
      !adapters.empty() && !is_there(adapters) && adapters == started.tables.text(kAdapterSource).value_or("");
  if (!lacks_model && !lacks_tokenizer && !lacks_adapters) return config;
  const Config stored = stored_config(folder);
  if (lacks_adapters)
    for (const auto& [key, value] : stored.tables.values())
      if (key.starts_with("adapter.")) config.tables.put(key, value);
  if (lacks_model) config.model.from = stored.model.from;
  if (lacks_tokenizer) config.data.tokenizer = stored.data.tokenizer;
  return config;
}

void check_sources_stay(const Config& config, bool overwrites) {
  const std::string& folder = config.run.folder;
  std::error_code ignored;
  require(!fs::equivalent(config.model.from, folder, ignored), "run",
          "run.folder must be another folder than model.from, whose config.json would be replaced: got ", folder,
          "; choose another run.folder");
  const std::string& tokenizer = config.data.tokenizer;
  const bool is_inside = names_path(tokenizer) && (fs::equivalent(tokenizer, folder, ignored) ||
                                                   fs::equivalent(fs::path(tokenizer).parent_path(), folder, ignored));
  require(!overwrites || !is_inside, "run",
          "data.tokenizer must not be in the folder of the run that is overwritten: got ", tokenizer,
          "; move it out of ", folder, ", or choose another run.folder");
}

}  // namespace colossal::run
