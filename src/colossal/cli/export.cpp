#include "colossal/checkpoint/gguf/export.h"

#include <ATen/ATen.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "colossal/base/error.h"
#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/checkpoint/weight_source.h"
#include "colossal/cli/commands.h"
#include "colossal/cli/local_world.h"
#include "colossal/cli/model_options.h"
#include "colossal/comm/agreement.h"
#include "colossal/diffusion/exported_pipeline.h"
#include "colossal/diffusion/saved_pipeline.h"
#include "colossal/formats/gguf_file.h"
#include "colossal/models/registry.h"
#include "colossal/run/adapter_choice.h"
#include "colossal/run/adapter_end_ids.h"
#include "colossal/run/adapter_export.h"
#include "colossal/run/adapter_source.h"
#include "colossal/run/control_source.h"
#include "colossal/run/exported_folder.h"
#include "colossal/run/external_names.h"
#include "colossal/run/image_prompt_source.h"
#include "colossal/run/learned_words.h"
#include "colossal/run/model_source.h"
#include "colossal/run/parts_within.h"
#include "colossal/run/saved_model.h"
#include "colossal/run/stored_config.h"
#include "colossal/text/chat_template.h"
#include "colossal/text/tokenizers/gguf_vocabulary.h"

namespace colossal::cli {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kMaxFileBytes = int64_t{5} << 30;

at::ScalarType dtype_named(const std::string& name) {
  return name == "fp64" ? at::kDouble : name == "bf16" ? at::kBFloat16 : name == "fp16" ? at::kHalf : at::kFloat;
}

bool is_gguf_name(const std::string& path) { return fs::path(path).extension() == ".gguf"; }

struct ExportRequest {
  std::string from, model, base, to, dtype, type, tokenizer, adapter_form;
  std::vector<std::string> adapters;
  bool adapter_only = false, no_ema = false;
  int64_t timeout = 300;
};

/// Returns the folder of the adapters that are merged; "" = there are none.
std::string merged_adapter(const ExportRequest& r) {
  return r.adapters.empty() ? "" : run::parse_adapter(r.adapters.front()).folder;
}

/// Adds the chat template and the end tokens of the folder of merged adapters to the tokenizer `source` of the model.
void take_adapter(const std::string& adapter, const std::string& source, formats::GgufValues& values) {
  const auto found = text::ChatTemplate::find("", {adapter});
  if (found && !found->source().empty()) values["tokenizer.chat_template"] = formats::GgufValue::text(found->source());
  text::add_end_ids(run::end_ids_of_adapter(adapter, *text::make_tokenizer(source), {}), values);
}

void write_gguf(const ExportRequest& r, const run::SavedModel& saved, comm::Group& world) {
  const models::ModelShape& shape = saved.model->model().shape;
  const models::HuggingFace& folder = shape.architecture->hugging_face;
  const std::string source = r.tokenizer.empty() ? saved.tokenizer_source : r.tokenizer;
  formats::GgufValues tokenizer;
  comm::agree(world, at::kCPU, [&] {
    const bool has_none = source == "none" || (source == r.from && !text::has_tokenizer(source));
    if (has_none) return;
    tokenizer = text::gguf_of_tokenizer(source, shape.vocabulary);
    // another tokenizer may have other ids
    if (r.tokenizer.empty() && !r.adapters.empty()) take_adapter(merged_adapter(r), source, tokenizer);
  });
  const nlohmann::json config = folder.to_json(shape);
  checkpoint::export_gguf(r.to, saved.model->parameters(), run::external_names(shape), config, tokenizer,
                          r.type.empty() ? "f32" : r.type, world);
  const std::optional<std::string> notice = checkpoint::notice_of_gguf(config);
  if (notice && world.rank() == 0) std::fprintf(stderr, "colossal: %s\n", notice->c_str());
}

/// Returns the narrowest dtype, fp32 at least, that holds the numbers of all tensors of a source.
at::ScalarType widest_dtype(const std::string& from) {
  at::ScalarType widest = at::kFloat;
  for (const auto& [name, entry] : checkpoint::open_weights(from)->entries())
    if (at::isFloatingType(entry->dtype)) widest = at::promote_types(widest, entry->dtype);
  return widest;
}

run::Loading loading_of(const ExportRequest& r, bool keeps_dtypes) {
  run::Loading loading{.model = r.model, .tokenizer = "none", .base = r.base, .merges_adapters = !r.adapter_only};
  loading.uses_average = !r.no_ema;
  if (!r.adapters.empty()) loading.adapter = run::parse_adapter(r.adapters.front());
  if (keeps_dtypes) loading.dtype = widest_dtype(r.from);
  return loading;
}

/// Writes the adapters of a run, and none of its other weights.
int export_adapters_alone(const ExportRequest& r, const run::SavedModel& saved, comm::Mesh& mesh,
                          const run::Program& program) {
  const bool has_words = run::is_words_run(r.from);
  const bool has_prompt = run::is_image_prompt_run(r.from);
  if (has_words || has_prompt || run::is_control_run(r.from)) {
    if (has_prompt)
      diffusion::export_image_prompt(r.to, saved, r.from, mesh, !r.no_ema, program);
    else if (!has_words)
      run::export_control(r.to, saved, r.from, mesh, !r.no_ema);
    if (has_words && mesh.world().rank() == 0) run::export_words(r.from, r.to);
    if (mesh.world().rank() == 0) std::printf("%s\n", r.to.c_str());
    return 0;
  }
  run::AdapterSource source;
  comm::agree(mesh.all(), at::kCPU, [&] { source = run::open_adapters(r.from); });
  source.uses_average = !r.no_ema;
  run::export_adapters(r.to, saved, source, mesh,
                       checkpoint::pipeline_form(r.adapter_form.empty() ? "peft" : r.adapter_form));
  comm::agree(mesh.all(), at::kCPU, [&] {
    if (mesh.world().rank() == 0) run::write_adapter_companions(saved, r.to);
  });
  if (mesh.world().rank() == 0) std::printf("%s\n", r.to.c_str());
  return 0;
}

/// Refuses adapters whose part for the text encoder would be lost, because an export merges those of the model alone.
void require_no_text_adapters(const std::string& path) {
  const run::AdapterSource source = run::open_adapters(path);
  require(!run::has_text_adapters(source), "export", path,
          " must have adapters of the model alone to be merged into a folder: got some of the text encoder; draw with "
          "`colossal draw --adapter`, which reads both");
}

/// Returns how the text encoder of a run is loaded: with the adapters that the run trained.
diffusion::OwnLoading text_encoder_of(const ExportRequest& r, const run::DiffusionObjective& objective) {
  diffusion::OwnLoading loading{.uses_average = !r.no_ema, .seed = objective.pipeline().seed};
  if (objective.trains_text_encoder()) loading.adapters.push_back({.folder = r.from});
  return loading;
}

/// Writes a run whose model draws pictures as a pipeline of diffusers, and a folder of diffusers as another one.
int export_for_diffusers(const ExportRequest& r, const run::SavedModel& saved, const run::Program& program,
                         comm::Mesh& mesh) {
  comm::Group& world = mesh.all();
  const models::ModelShape& shape = saved.model->model().shape;
  const at::ScalarType dtype = r.dtype.empty() ? saved.model->parameters().options().dtype : dtype_named(r.dtype);
  const bool makes_pipeline = run::is_run(r.from) && shape.part<models::DenoiserSizes>().channels > 0;
  std::shared_ptr<const run::DiffusionObjective> objective;
  comm::agree(world, at::kCPU, [&] {
    if (!r.adapters.empty()) require_no_text_adapters(merged_adapter(r));
    require(
        !run::has_parts_alone(r.from), "export", r.from,
        " must be written with --adapter-only, because no pipeline has a ControlNet, learned words or an IP-adapter "
        "within it: got it without");
    require(!is_gguf_name(r.to), "export", "a model of pictures must be written as a folder: got ", r.to);
    if (makes_pipeline) objective = diffusion::objective_of_run(r.from, program, "export");
  });
  std::vector<std::string> notices;
  if (run::has_pipeline(r.from))
    diffusion::export_pipeline_from(r.from, r.to, *saved.model, mesh, dtype, program);
  else if (makes_pipeline)
    notices = diffusion::export_pipeline(r.to, *saved.model, *objective, mesh, dtype, text_encoder_of(r, *objective),
                                         program);
  else
    checkpoint::export_weights(r.to, saved.model->parameters(), run::external_names(shape),
                               run::exported_config(saved, program.models, dtype), world, kMaxFileBytes, dtype);
  if (world.rank() != 0) return 0;
  for (const std::string& notice : notices) say(notice);
  std::printf("%s\n", r.to.c_str());
  return 0;
}

/// Writes what draws clips beside the weights of their model, if `from` is a run or an export that draws them.
void export_parts(const ExportRequest& r, const run::Program& program, comm::Mesh& mesh) {
  run::PipelineSource source;
  diffusion::OwnLoading text_encoder;
  if (run::is_run(r.from)) {
    const auto objective = diffusion::objective_of_run(r.from, program, "export");
    source = objective->pipeline();
    text_encoder = text_encoder_of(r, *objective);
  } else if (run::has_pipeline(r.from)) {
    source = run::pipeline_in_folder(r.from, program.models);
  } else {
    return;
  }
  diffusion::export_parts_of_clips(r.to, source, mesh, text_encoder, program);
}

/// Returns true if each tensor keeps the dtype that it has in the source: those of a folding model may differ.
bool keeps_dtypes(const ExportRequest& r, const run::Program& program) {
  return r.dtype.empty() && !run::is_run(r.from) && r.adapters.empty() &&
         run::find_source(r.from, program).shape.part<models::FoldingSizes>().single > 0;
}

void check_export(const ExportRequest& r) {
  const bool to_file = is_gguf_name(r.to);
  if (r.adapters.size() > 1) throw UsageError("colossal export: --adapter must be given once");
  if (r.adapter_only && (to_file || !r.adapters.empty() || !r.dtype.empty()))
    throw UsageError(
        "colossal export: --adapter-only writes the adapters of a run as they are, into a folder; leave out --adapter, "
        "--dtype and .gguf");
  if (!r.adapter_form.empty() && !r.adapter_only)
    throw UsageError("colossal export: --adapter-form has no effect without --adapter-only");
  if (to_file && !r.dtype.empty())
    throw UsageError("colossal export: --dtype is for folders; use --type for a GGUF file");
  if (!to_file && !(r.type + r.tokenizer).empty())
    throw UsageError("colossal export: --type and --tokenizer need a GGUF file, whose name ends in .gguf");
}

void print_notices_of(const run::SavedModel& saved, const std::string& from) {
  print_notices(saved);
  if (saved.leaves_out_values)
    std::fprintf(stderr, "colossal: the head of values of %s is left out, because only training uses it\n",
                 from.c_str());
}

}  // namespace

int export_model(const Arguments& arguments, const run::Program* program) {
  CLI::App app("Writes a run, a Hugging Face folder or a GGUF file as a Hugging Face folder or a GGUF file.",
               "colossal export");
  ExportRequest r;
  app.add_option("--from", r.from, "run folder, Hugging Face folder or GGUF file")->required();
  add_model_name(app, r.model);
  add_no_ema(app, r.no_ema);
  add_adapter_options(app, r.adapters, r.base);
  app.add_flag("--adapter-only", r.adapter_only, "write the adapters of a run alone, as a folder that peft reads");
  app.add_option("--adapter-form", r.adapter_form,
                 "with --adapter-only, of a model that draws: peft, as diffusers writes it, or kohya; default: peft")
      ->check(CLI::IsMember({"peft", "kohya"}));
  app.add_option("--to", r.to, "Hugging Face folder to write (config.json and model.safetensors), or NAME.gguf")
      ->required();
  app.add_option("--dtype", r.dtype, "dtype of a folder's weights; default: that of the run's master weights, or fp32")
      ->check(CLI::IsMember({"fp64", "fp32", "bf16", "fp16"}));
  app.add_option("--type", r.type, "type of a GGUF file's matrices; default: f32")
      ->check(CLI::IsMember(checkpoint::gguf_type_names()));
  app.add_option("--tokenizer", r.tokenizer,
                 "tokenizer of a GGUF file: `bytes`, a tokenizer folder or file, or `none` = no tokenizer; default: "
                 "the model's tokenizer");
  add_timeout(app, r.timeout);
  parse(app, arguments);
  check_export(r);
  require_another_path("export", r.from, r.to);
  if (!r.adapters.empty()) require_another_path("export", merged_adapter(r), r.to, "--adapter");

  const auto world = join_ranks(r.timeout, "cpu");
  comm::Mesh mesh(*world, {comm::Mesh::batch("data", world->size())});
  const run::Program used = program ? *program : run::built_in();
  const bool keeps = keeps_dtypes(r, used);
  const run::SavedModel saved = run::load_model(r.from, mesh, {}, at::kCPU, loading_of(r, keeps), used);
  if (world->rank() == 0) print_notices_of(saved, r.from);
  const auto busy = world->busy("writing " + r.to);
  if (r.adapter_only) return export_adapters_alone(r, saved, mesh, used);
  const models::ModelShape& shape = saved.model->model().shape;
  const models::HuggingFace& folder = shape.architecture->hugging_face;
  if (!folder.names && shape.architecture->diffusers.names) return export_for_diffusers(r, saved, used, mesh);
  const bool draws = shape.part<models::DenoiserSizes>().channels > 0;
  require(!draws || !is_gguf_name(r.to), "export", "a model that draws must be written as a folder: got ", r.to);
  require(!folder.model_type.empty(), "export", "models of architecture ", shape.architecture->name,
          " cannot be written as a Hugging Face folder");
  if (is_gguf_name(r.to)) {
    write_gguf(r, saved, mesh.group("data"));
  } else {
    const nn::Parameters& parameters = saved.model->parameters();
    const at::ScalarType dtype = r.dtype.empty() ? parameters.options().dtype : dtype_named(r.dtype);
    const nlohmann::json config = run::exported_config(saved, used.models, dtype);
    const checkpoint::ExternalNames names = run::external_names(shape);
    const auto dtypes = keeps ? checkpoint::dtypes_in(r.from, names, dtype) : checkpoint::TensorDtypes{dtype};
    checkpoint::export_weights(r.to, parameters, names, config, mesh.group("data"), kMaxFileBytes, dtypes);
    if (world->rank() == 0) {
      run::write_companions(saved, r.to);
      if (!r.adapters.empty()) run::take_companions_of_adapter(merged_adapter(r), r.to);
    }
    if (draws) export_parts(r, used, mesh);
  }
  if (world->rank() == 0) std::printf("%s\n", r.to.c_str());
  return 0;
}

}  // namespace colossal::cli
