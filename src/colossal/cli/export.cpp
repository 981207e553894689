#include "colossal/cli/export.h"

#include <ATen/ATen.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "colossal/base/error.h"
#include "colossal/checkpoint/hugging_face.h"
#include "colossal/cli/local_world.h"
#include "colossal/models/registry.h"
#include "colossal/run/saved_model.h"

namespace colossal::cli {

namespace {

/// The files that make a folder's text: an export is complete only with them. A tokenizer of bytes has none.
void copy_tokenizer(const std::string& source, const std::string& to) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::is_directory(source) ? fs::path(source) : fs::path(source).parent_path();
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "tokenizer.model",
                           "spiece.model", "vocab.json", "merges.txt", "vocab.txt"})
    if (source != "bytes" && fs::exists(folder / name) && !fs::equivalent(folder, to))
      fs::copy_file(folder / name, fs::path(to) / name, fs::copy_options::overwrite_existing);
}

at::ScalarType dtype_named(const std::string& name) {
  return name == "fp64" ? at::kDouble : name == "bf16" ? at::kBFloat16 : name == "fp16" ? at::kHalf : at::kFloat;
}

}  // namespace

int export_model(const Arguments& arguments, const models::Registry* models) {
  CLI::App app("Writes the weights of a run, or of a Hugging Face folder, as a Hugging Face folder.",
               "colossal export");
  std::string from, to, dtype;
  int64_t timeout = 300;
  app.add_option("--from", from, "run folder, or Hugging Face folder")->required();
  app.add_option("--to", to, "folder to write: config.json and model.safetensors")->required();
  app.add_option("--dtype", dtype, "of the weights that are written; default: that of the run's masters, or fp32")
      ->check(CLI::IsMember({"fp64", "fp32", "bf16", "fp16"}));
  add_timeout(app, timeout);
  parse(app, arguments);

  const auto world = join_ranks(timeout, "cpu");
  comm::Mesh mesh(*world, {comm::Mesh::batch("data", world->size())});
  const run::SavedModel saved =
      run::load_model(from, mesh, {}, at::kCPU, {.tokenizer = "none"}, models ? *models : models::built_in());
  const auto busy = world->busy("writing " + to);
  const models::ModelShape& shape = saved.model->model().shape;
  const models::HuggingFace& folder = shape.architecture->hugging_face;
  require(!folder.model_type.empty(), "export", "models of architecture ", shape.architecture->name,
          " have no form as a Hugging Face folder");
  checkpoint::export_weights(to, saved.model->parameters(), {folder.names(shape), folder.prefix, folder.ignored},
                             folder.to_json(shape), mesh.group("data"), int64_t{5} << 30,
                             dtype.empty() ? std::nullopt : std::optional(dtype_named(dtype)));
  if (world->rank() == 0) copy_tokenizer(saved.tokenizer_source, to);
  if (world->rank() == 0) std::printf("%s\n", to.c_str());
  return 0;
}

}  // namespace colossal::cli
