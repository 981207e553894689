#include "colossal/cli/model_options.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <variant>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/base/fields.h"
#include "colossal/cli/local_world.h"
#include "colossal/comm/launch/device.h"
#include "colossal/diffusion/saved_pipeline.h"
#include "colossal/parallel/expert/config.h"
#include "colossal/parallel/tensor/config.h"

namespace colossal::cli {

void add_expert_options(CLI::App& app, distributed::ParallelConfig& layout) {
  app.add_option("--parallel.expert,--parallel.expert.size", layout.expert.size,
                 "number of ranks that divide the experts of each layer")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--parallel.expert.tensor", layout.expert.tensor,
                 "what the ranks of a tensor group hold: whole experts (deal), or parts of each (split)")
      ->capture_default_str()
      ->check(CLI::IsMember({"deal", "split"}));
  app.add_option("--parallel.expert.compress", layout.expert.compress,
                 "format of hidden states on their way to experts of other ranks; none = uncompressed")
      ->capture_default_str()
      ->check(CLI::IsMember({"none", "fp8"}));
  app.add_option("--parallel.expert.node", layout.expert.node,
                 "number of ranks of a node, to which a token is sent once; 0 = straight to each rank")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
}

namespace {

void add_layout(CLI::App& app, distributed::ParallelConfig& layout, const std::vector<std::string>& sequence_modes) {
  app.add_option("--parallel.tensor,--parallel.tensor.size", layout.tensor.size,
                 "number of ranks that share each matrix")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--parallel.tensor.mode", layout.tensor.mode, "partition of matrices")
      ->capture_default_str()
      ->check(CLI::IsMember(parallel::mode_names()));
  app.add_option("--parallel.tensor.depth", layout.tensor.depth, "number of copies of the weights (2.5d)")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  add_expert_options(app, layout);
  app.add_option("--parallel.sequence,--parallel.sequence.size", layout.sequence.size,
                 "number of ranks that split the prompt's tokens and the KV cache")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--parallel.sequence.mode", layout.sequence.mode, "exchange of keys and queries between ranks")
      ->capture_default_str()
      ->check(CLI::IsMember(sequence_modes));
  app.add_option("--parallel.sequence.ulysses", layout.sequence.ulysses,
                 "number of neighbouring ranks that exchange heads (usp)")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--parallel.sequence.node", layout.sequence.node,
                 "number of sequence ranks per node (ring, usp); 0 = one ring over all ranks")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app.add_option("--parallel.pipeline,--parallel.pipeline.size", layout.pipeline.size,
                 "number of ranks that split the model's blocks")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
}

/// Adds a flag for each field of a serve::ModelOptions or diffusion::OtherParts.
class ModelFlagAdder : public Fields {
 public:
  explicit ModelFlagAdder(CLI::App& app) : app_(app) {}

 private:
  void visit(const Field& field) override {
    std::string flag = serve::flag_of(field.name);
    if (flag == "--precision") flag += ",--precision.mode";
    if (field.is_bytes) return add_size(app_, flag, *std::get<int64_t*>(field.value), field.help);
    if (auto* const* text = std::get_if<std::string*>(&field.value)) {
      CLI::Option* option = app_.add_option(flag, **text, field.help)->capture_default_str();
      if (!field.choices.empty()) option->check(CLI::IsMember(field.choices));
      return;
    }
    if (auto* const* flag_value = std::get_if<bool*>(&field.value)) {
      app_.add_flag(flag, **flag_value, field.help);
      return;
    }
    if (auto* const* texts = std::get_if<std::vector<std::string>*>(&field.value)) {
      app_.add_option(flag, **texts, field.help)->expected(1)->take_all();
      return;
    }
    CLI::Option* option = app_.add_option(flag, *std::get<int64_t*>(field.value), field.help)->capture_default_str();
    if (field.max < kMaxInteger)
      option->check(CLI::Range(field.min, field.max));
    else if (field.min == 1)
      option->check(CLI::PositiveNumber);
  }
  void visit_rest(ConfigDocument&) override {}
  void enter(const char*, const char*, const char*) override {}
  void leave() override {}

  CLI::App& app_;
};

}  // namespace

void add_size(CLI::App& app, const std::string& key, int64_t& bytes, const std::string& help) {
  const auto read = [key, &bytes](const std::string& text) {
    const std::optional<int64_t> size = parse_bytes(text);
    if (!size) throw CLI::ValidationError(key, concat("must be ", kSizeRule, ": got ", text));
    bytes = *size;
  };
  app.add_option_function<std::string>(key, read, help);
}

void add_model_name(CLI::App& app, std::string& model) { app.add_option("--model", model, serve::kFurtherModelHelp); }

void add_no_ema(CLI::App& app, bool& no_ema) { app.add_flag("--no-ema", no_ema, serve::kNoEmaHelp); }

void add_adapter_options(CLI::App& app, std::vector<std::string>& adapters, std::string& base) {
  app.add_option("--adapter", adapters, serve::kAdapterHelp)->expected(1)->take_all();
  app.add_option("--base", base, serve::kBaseHelp);
}

void add_model_options(CLI::App& app, ModelOptions& options, const std::vector<std::string>& sequence_modes) {
  ModelFlagAdder flags(app);
  options.source_fields(flags);
  app.get_option("--from")->required();
  add_layout(app, options.layout, sequence_modes);
  options.weight_fields(flags);
  add_timeout(app, options.timeout);
}

void add_engine_options(CLI::App& app, ModelOptions& model, infer::EngineOptions& options) {
  ModelFlagAdder flags(app);
  model.engine_fields(flags, options);
  app.get_option("--kv-cache-dtype")->each([&options](const std::string& type) {
    options.cache_dtype = serve::cache_dtype_of(type);
  });
}

void add_part_options(CLI::App& app, diffusion::OtherParts& other) {
  ModelFlagAdder flags(app);
  other.fields(flags);
}

void check_model_options(const CLI::App& app, const ModelOptions& options) {
  options.layout.axes();
  parallel::check_expert_tensor(options.layout.expert, options.layout.tensor);
  parallel::check_expert_node(options.layout.expert, options.layout.tensor);
  const distributed::ParallelConfig& layout = options.layout;
  const distributed::ParallelConfig default_layout;
  if (layout.tensor.size == 1 && layout.tensor.mode != default_layout.tensor.mode)
    refuse_options(app, {"--parallel.tensor.mode"}, "with --parallel.tensor=1, where each rank has whole matrices");
  if (layout.tensor.size == 1 && layout.expert.tensor != default_layout.expert.tensor)
    refuse_options(app, {"--parallel.expert.tensor"}, "with --parallel.tensor=1, where each rank has whole experts");
  if (layout.tensor.size == 1 && layout.expert.size == 1 && layout.expert.compress != default_layout.expert.compress)
    refuse_options(app, {"--parallel.expert.compress"}, "on one rank, which has all experts");
  if (layout.sequence.size == 1 && layout.sequence.mode != default_layout.sequence.mode)
    refuse_options(app, {"--parallel.sequence.mode"}, "with --parallel.sequence=1, where each rank has all tokens");
  const CLI::Option* draft_tokens = app.get_option_no_throw("--draft-tokens");
  const std::string unused =
      options.check([&app](const char* name) { return app.count(serve::flag_of(name)) > 0; },
                    draft_tokens && draft_tokens->count() > 0 && draft_tokens->as<int64_t>() == 0);
  if (!unused.empty()) throw UsageError(app.get_name() + ": " + unused);
}

void check_text_model_options(const CLI::App& app, const ModelOptions& options, const char* command) {
  options.check_tokenizer(command);
  check_model_options(app, options);
}

void require_another_path(const char* command, const std::string& from, const std::string& to, const char* flag) {
  std::error_code ignored;
  require(!std::filesystem::equivalent(from, to, ignored), command, "--to must not be ", flag,
          ", which would be overwritten: got ", to, "; name another folder");
}

infer::EngineOptions LoadedModel::engine(infer::EngineOptions options) const {
  options.adapters = saved.adapters;
  return serve::with_draft(std::move(options), draft);
}

void print_notices(const run::SavedModel& saved) {
  for (const std::string& notice : saved.notices) std::fprintf(stderr, "colossal: %s\n", notice.c_str());
}

std::unique_ptr<comm::World> join_layout(const ModelOptions& options, int64_t copies, const char* name_of_copies) {
  const distributed::ParallelConfig& layout = options.layout;
  const at::Device device = comm::choose_device(options.device, 0);
  auto world = join_ranks(options.timeout, device.is_cuda() ? "cuda" : "cpu");
  require(world->size() == copies * layout.ranks(), "parallel", "the number of ranks must match the layout: got ",
          world->size(), " ranks, ", copies > 1 ? concat(name_of_copies, " ", copies, " * ") : "", "pipeline ",
          layout.pipeline.size, layout.expert.size > 1 ? concat(" * expert ", layout.expert.size) : "", " * sequence ",
          layout.sequence.size, " * tensor ", layout.tensor.size);
  if (world->rank() == 0) warn_of_unused_gpus(options.device);
  return world;
}

int with_model(const ModelOptions& options, const std::string& command, const Arguments& arguments,
               const run::Program* program, const std::function<int(const LoadedModel&)>& work) {
  return with_ranks(options.layout.ranks(), command, arguments, [&] {
    const auto world = join_layout(options);
    comm::Mesh mesh(*world, options.layout.axes());
    const serve::ModelAndDraft loaded =
        serve::load_with_draft(options, options.loading(), mesh, options.layout, program);
    if (world->rank() == 0) print_notices(loaded.model);
    return work({*world, mesh, loaded.model, loaded.draft ? &*loaded.draft : nullptr});
  });
}

}  // namespace colossal::cli
