#include "colossal/serve/model_options.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/model_path.h"
#include "colossal/base/run_folder.h"
#include "colossal/comm/launch/device.h"
#include "colossal/formats/gguf_file.h"
#include "colossal/infer/generation_options.h"
#include "colossal/memory/tiers/eviction_policy.h"
#include "colossal/models/registry.h"
#include "colossal/models/shape.h"
#include "colossal/text/tokenizer.h"

namespace colossal::serve {
namespace {

constexpr int64_t kDraftTokens = 4;  // each draft token costs a pass, and later ones are accepted less often

/// Checks that tokens of both models have the same text. Errors ("draft"): tokens that differ.
void check_draft(const text::Tokenizer& own, const text::Tokenizer& draft) {
  const int64_t common = std::min(own.vocabulary_size(), draft.vocabulary_size());
  for (int64_t id = 0; id < common; ++id)
    require(own.piece(id) == draft.piece(id), "draft", "a draft model must have the model's tokens: token ", id,
            " is '", text::valid_utf8(own.piece(id)), "', in the draft '", text::valid_utf8(draft.piece(id)), "'");
}

/// Checks the folder of the draft model. Errors ("draft"): no tokenizer can be read from it, and no other is named.
void check_draft_folder(const ModelOptions& options) {
  const std::string& folder = options.draft;
  std::error_code ignored;
  const bool is_run = std::filesystem::exists(RunFolder(folder).config(), ignored);
  const bool is_model = formats::is_gguf(folder) || std::filesystem::exists(folder + "/config.json", ignored);
  require(is_run || !is_model || text::has_tokenizer(folder), "draft",
          "the draft model must come with a tokenizer, because its tokens must be those of the model: got none in ",
          folder, "; copy the model's tokenizer files there, or name one for both models with --tokenizer");
}

}  // namespace

void ModelOptions::source_fields(Fields& f) {
  f.text("from", from, "run folder, Hugging Face folder (config.json and safetensors) or GGUF file");
  f.text("model", model, kFurtherModelHelp);
  f.texts("adapter", adapters, kAdapterHelp);
  f.text("base", base, kBaseHelp);
  f.flag("no_ema", no_ema, kNoEmaHelp);
  f.text("tokenizer", tokenizer, "`bytes`, or a tokenizer folder or file; default: the model's tokenizer");
}

void ModelOptions::weight_fields(Fields& f) {
  f.choice("device", device, {"auto", "cpu", "cuda"}, "device: auto, cpu or cuda");
  f.choice("precision", precision.mode, {"fp64", "fp32", "bf16", "fp16"},
           "dtype of weights and activations; default: that of the run's master weights, or fp32");
  f.choice("quantize", quantize, {"int8", "int4", "fp8"},
           "weight format, quantized while loading: int8 or int4 with a scale per group of inputs, fp8 (e4m3) "
           "with a scale per output; default: not quantized");
  f.integer("group_size", group_size, "inputs", "number of inputs that share a scale of int8 or int4, a multiple of 8",
            std::numeric_limits<int64_t>::min());  // run::load_model() checks it
  f.bytes("memory_device", memory.device,
          "GPU memory per rank for weights; the other weights are in host memory and copied for every token; default: "
          "all weights, or with memory.host or memory.disk what is read at a time");
  f.bytes("memory_host", memory.host,
          "host memory of this machine, over all ranks, for weights outside memory.device; weights that do not fit "
          "are read from memory.disk for every token; default: all weights");
  f.text("memory_disk", memory.disk,
         "folder for weights that do not fit, emptied at the end; without memory.host it holds as many weights "
         "as possible");
  f.choice("memory_placement", memory.placement, memory::eviction_policy_names(),
           "eviction policy: which weights are not in memory.host");
}

void ModelOptions::engine_fields(Fields& f, infer::EngineOptions& engine) {
  f.bytes("kv_cache", engine.cache_bytes, "size of the KV cache per rank; default: 1GiB");
  f.choice("kv_cache_dtype", cache_type, {"model", "int8", "fp8"},
           "element type of the KV cache: model = the activations' dtype; int8 or fp8 = "
           "quantized, with a scale per token and head; default: model");
  f.integer("step_tokens", engine.step_tokens, "tokens", "maximum number of tokens per step, over all sequences", 1);
  f.integer("draft_tokens", engine.draft_tokens, "tokens",
            "maximum number of draft tokens per step, from --draft, from the multi-token layers of the model or, "
            "without them, from earlier text (prompt lookup); 0 = off; with --draft the default is 4",
            0, 256);
  f.text("draft", draft,
         "draft model: a smaller model with the same tokenizer, given as for --from; its layout, precision and "
         "--quantize are those of the model");
}

std::string ModelOptions::check(const std::function<bool(const char*)>& is_given, bool drafts_nothing) const {
  if (name_beside_adapters.empty()) {
    require(adapters.size() <= 1, "adapter", "--adapter must be given once: got ", adapters.size(),
            "; merge one with `colossal export`, and give the other");
    if (!adapters.empty()) run::parse_adapter(adapters.front());
  } else {
    run::parse_adapters(adapters, name_beside_adapters);
  }
  require(quantize.empty() || !memory.has_tiers(), "quantize",
          "--quantize keeps all weights in memory: got keys of memory too; leave out either");
  if (quantize != "int8" && quantize != "int4" && is_given("group_size"))
    return "--group-size has no effect without --quantize int8 or int4, whose groups share a scale";
  if (memory.disk.empty() && is_given("memory_placement"))
    return "--memory.placement has no effect without --memory.disk, because all weights stay in host memory";
  require_model_path(from, "run");
  if (draft.empty()) return "";
  require_model_path(draft, "draft");
  if (tokenizer.empty()) check_draft_folder(*this);
  if (!drafts_nothing) return "";
  return "--draft has no effect with --draft-tokens 0; leave out --draft-tokens, or set the number of draft tokens per "
         "step";
}

void ModelOptions::check_tokenizer(const char* component) const {
  require(tokenizer != "none", component, "--tokenizer must be bytes, or a tokenizer's folder or file: got none");
}

run::Loading ModelOptions::loading() const {
  run::Loading loading{.model = model, .tokenizer = tokenizer, .base = base, .memory = memory};
  loading.uses_average = !no_ema;
  if (!name_beside_adapters.empty())
    loading.named_adapters = run::parse_adapters(adapters, name_beside_adapters);
  else if (!adapters.empty())
    loading.adapter = run::parse_adapter(adapters.front());
  if (!precision.mode.empty()) loading.dtype = precision.dtype();
  const int64_t bits = quantize.empty() ? 0 : quantize == "int4" ? 4 : 8;
  loading.packing = {.bits = bits, .group = group_size, .floating = quantize == "fp8"};
  return loading;
}

std::optional<text::ChatTemplate> ModelOptions::chat_template(const std::string& file,
                                                              const std::string& adapter) const {
  const run::Loading own = loading();
  std::vector<std::string> folders;
  if (own.adapter) folders.push_back(own.adapter->folder);
  for (const run::AdapterChoice& choice : own.named_adapters)
    if (choice.name == adapter) folders.push_back(choice.folder);
  folders.push_back(from);
  return text::ChatTemplate::find(file, folders);
}

std::string flag_of(std::string name) {
  if (name == "device") return "--run.device";
  if (name.starts_with("memory_")) return "--memory." + name.substr(name.find('_') + 1);
  return infer::flag_of(std::move(name));
}

std::optional<at::ScalarType> cache_dtype_of(const std::string& name) {
  if (name.empty() || name == "model") return {};
  return name == "int8" ? at::kChar : at::kFloat8_e4m3fn;
}

ModelAndDraft load_with_draft(const ModelOptions& options, const run::Loading& loading, comm::Mesh& mesh,
                              const distributed::ParallelConfig& layout, const run::Program* program) {
  const at::Device device = comm::choose_device(options.device, mesh.world().local_rank());
  const run::Program& known = program ? *program : run::built_in();
  ModelAndDraft loaded{run::load_model(options.from, mesh, layout, device, loading, known)};
  if (options.draft.empty()) return loaded;
  run::Loading of_draft = loading;
  of_draft.memory = {};
  of_draft.model.clear();
  of_draft.base.clear();
  of_draft.adapter.reset();
  of_draft.named_adapters.clear();
  loaded.draft = run::load_model(options.draft, mesh, layout, device, of_draft, known);
  const models::ModelShape& shape = loaded.draft->model->decoding_model().shape;
  require(shape.task().continues(), "draft", "a draft model must continue text: got a ", shape.architecture->name,
          ", which ", shape.task().purpose());
  if (loaded.model.tokenizer) check_draft(*loaded.model.tokenizer, *loaded.draft->tokenizer);
  return loaded;
}

infer::EngineOptions with_draft(infer::EngineOptions options, const run::SavedModel* draft) {
  if (!draft) return options;
  options.draft = draft->model.get();
  if (options.draft_tokens == 0) options.draft_tokens = kDraftTokens;
  return options;
}

}  // namespace colossal::serve
