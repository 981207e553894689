#include "colossal/align/precompute.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "colossal/align/reference_shape.h"
#include "colossal/align/score_cache.h"
#include "colossal/base/checksum.h"
#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/base/json.h"
#include "colossal/base/json_fields.h"
#include "colossal/base/json_file.h"
#include "colossal/base/run_folder.h"
#include "colossal/base/seed.h"
#include "colossal/checkpoint/checkpoint.h"
#include "colossal/comm/agreement.h"
#include "colossal/comm/launch/device.h"
#include "colossal/comm/mesh.h"
#include "colossal/data/streams/record_mix.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/fp8_product.h"
#include "colossal/nn/frozen_form.h"
#include "colossal/run/base_codes.h"
#include "colossal/run/data.h"
#include "colossal/run/frozen_base.h"
#include "colossal/run/low_rank_adapter.h"
#include "colossal/run/model_source.h"
#include "colossal/run/objectives/alignment/answer_sums.h"
#include "colossal/run/objectives/alignment/keys.h"
#include "colossal/run/objectives/alignment/reference.h"
#include "colossal/run/objectives/alignment/reference_keys.h"
#include "colossal/run/stored_weights.h"
#include "colossal/run/streamed_weights.h"

namespace colossal::align {
namespace {

constexpr int64_t kPassesOfAFile = 16;
constexpr char kComponent[] = "reference";

std::string manifest_in(const std::string& checkpoint) { return checkpoint + "/manifest.json"; }

/// The reference of a run whose source was found, and how it stores its frozen matrices.
struct Reference {
  run::ResolvedFurther model;
  bool keeps_codes = false;  ///< its matrices are the codes of model.from (run::FrozenBase)
  std::string base;          ///< ScoreOrigin::base
};

/// Returns the format in which the reference of a run stores the frozen matrices, as ScoreOrigin::base has it. Modules
/// that train whole keep their values, so they belong to it.
std::string format_of(const run::Config& config, const run::FurtherModel& reference, bool keeps_codes) {
  const run::LowRankKeys keys = run::adapter_keys(config);
  const bool has_format = reference.use == run::ModelUse::Original && keys.base != "model" &&
                          (keys.base != "bf16" || config.precision.dtype() != at::kBFloat16);
  if (!keeps_codes && !has_format) return ScoreOrigin().base;
  std::string format = keeps_codes                                   ? "codes of the folder"
                       : keys.base == "nf4" && keys.double_quantized ? "nf4 with double"
                                                                     : keys.base;
  if (keys.trained.empty()) return format;
  std::vector<std::string> trained = keys.trained;
  std::sort(trained.begin(), trained.end());
  return format + " without " + join(trained);
}

/// Finds the reference. It reads no weights and does not communicate.
Reference resolve_reference(const run::Config& config, const run::OwnTables& tables, const models::ModelShape& shape,
                            const run::Program& program) {
  run::FurtherModel model = run::reference_of(config, tables);
  const bool is_base = model.use == run::ModelUse::WithoutAdapters;
  // Without its adapters the main model is what it starts from.
  if (is_base) model.use = run::ModelUse::Original;
  Reference reference{.model = run::resolve_further(config, {model}, tables, shape, program).front(),
                      .keeps_codes = is_base && run::keeps_codes(config)};
  reference.base = format_of(config, model, reference.keeps_codes);
  check_reference_shape(reference.model.source.shape, shape);
  return reference;
}

/// Returns ScoreOrigin::precision: the mode, and of fp8 what scales of passes without gradients depend on.
std::string precision_of(const run::PrecisionConfig& precision) {
  return precision.mode == "fp8" ? concat("fp8 with margin ", precision.fp8.margin) : precision.mode;
}

/// It does not communicate. Time: that of run::checksum_of().
ScoreOrigin origin_of(const run::Config& config, const Reference& reference, const nlohmann::json& data) {
  const run::ModelSource& source = reference.model.source;
  ScoreOrigin origin{.source = source.path,
                     .checkpoint = source.checkpoint,
                     .blocks = {},
                     .weights = run::checksum_of(source),
                     .precision = precision_of(config.precision),
                     .base = reference.base,
                     .shape = checksum(computing_keys(source.shape).dump()),
                     .tokenizer = data.value("tokenizer", nlohmann::json()).dump(),
                     .chat_template = data.value("template", nlohmann::json()).dump(),
                     .data = checksum(data.value("sources", nlohmann::json()).dump())};
  if (source.is_preset) origin.source += concat(" of training.seed ", config.training.seed);
  if (!source.checkpoint.empty()) origin.blocks = file_checksum(manifest_in(source.checkpoint));
  return origin;
}

/// The reference over the ranks of a run, for passes without gradients. It stores its weights and multiplies with them
/// as the models of the run do.
class ReferencePasses {
 public:
  /// Collective among all ranks of `mesh`.
  ReferencePasses(comm::Mesh& mesh, const run::Config& config, const Reference& reference, at::Device device)
      : mesh_(mesh), micro_batches_(mesh.size("pipeline") > 1 ? config.micro_batches() : 1) {
    const run::ModelSource& source = reference.model.source;
    const auto busy = mesh.world().busy("reading " + source.path);
    const distributed::DistributedModel::Workload work{.micro_batches = config.micro_batches()};
    std::optional<nn::Parameters::Options> options;
    comm::agree(mesh.all(), at::kCPU, [&] { options = options_of(config, reference, device); });
    model_ = std::make_unique<distributed::DistributedModel>(mesh, config.parallel, source.shape, *options, work);
    if (config.memory.has_tiers()) weights_ = std::make_unique<run::StreamedWeights>(*model_, mesh, config.memory);
    std::vector<checkpoint::NamedTensor> tensors = weights_ ? weights_->tensors() : tensors_in_memory();
    if (source.is_preset)
      draw(tensors);
    else
      run::read_source(source, model_->parameters(), tensors, mesh, "");
    if (weights_) weights_->loaded();
    comm::agree(mesh.all(), at::kCPU, [&] {
      if (failure_) std::rethrow_exception(failure_);
    });
  }

  /// Returns the sums of the texts of this rank's rows, [B, 2] in fp64 on the host of every rank. Collective.
  at::Tensor sums(const tensor::Batch& batch) {
    const at::NoGradGuard no_grad;
    models::Model& model = model_->model();
    const tensor::Batch whole =
        model_->cuts_tokens(batch)
            ? batch.map([](const tensor::Field& f) { return f.stays_whole ? f.tensor.cpu() : f.tensor; })
            : model_->on_device(batch);
    const int64_t parts = batch.rows() % (micro_batches_ * model.batch_parts) == 0 ? micro_batches_ : 1,
                  rows = batch.rows() / parts;
    std::vector<nn::ForwardContext> steps;
    for (int64_t i = 0; i < parts; ++i) steps.push_back(nn::step_of(whole.part(i * rows, rows)));
    const auto sums_of = [&](int, const models::States& end, const nn::ForwardContext& step) {
      return run::answer_sums(model, end, step, kTexts).to(at::kDouble);
    };
    const std::vector<at::Tensor> results = model_->forward(steps, sums_of);
    const at::Device device = model_->parameters().options().device;
    at::Tensor all =
        results.empty() ? at::zeros({batch.rows(), kTexts}, at::dtype(at::kDouble).device(device)) : at::cat(results);
    comm::Group& stages = mesh_.group("pipeline");
    if (stages.size() > 1) stages.all_reduce(all, comm::Reduce::Sum).wait();
    return all.cpu();
  }

 private:
  /// Returns the options of the parameters, with wrappers in the order in which train::Engine has them.
  nn::Parameters::Options options_of(const run::Config& config, const Reference& reference, at::Device device) {
    nn::Parameters::Options options{config.precision.dtype(), device,
                                    derive_seed(static_cast<uint64_t>(config.training.seed), "parameters")};
    options.without_memory = true;
    const nn::Adapter adapter = reference.model.adapter();
    options.treatment = adapter.treatment;
    if (config.precision.mode == "fp8") {
      fp8_ = std::make_unique<nn::Fp8Products>(nn::fp8_recipe(config.precision.fp8));
      options.products.push_back([this](auto product, const nn::Parameter& weight, nn::Parameters& parameters) {
        return fp8_->wrap(std::move(product), weight, parameters);
      });
    }
    if (reference.keeps_codes) {
      run::check_codes(config);
      const models::ModelShape& shape = reference.model.source.shape;
      // Modules that train whole have values in the run.
      const auto base = std::make_shared<const run::FrozenBase>(
          config.model.from, shape, run::low_rank_adapter(run::adapter_keys(config), shape));
      options.products.push_back([base](auto product, const nn::Parameter& weight, nn::Parameters& parameters) {
        return base->wrap(std::move(product), weight, parameters);
      });
    }
    if (adapter.product) options.products.push_back(adapter.product);
    return options;
  }

  std::vector<checkpoint::NamedTensor> tensors_in_memory() {
    std::vector<checkpoint::NamedTensor> tensors;
    nn::Parameters& parameters = model_->parameters();
    for (nn::Parameter& p : parameters) {
      p.value.set_data(at::empty(p.value.sizes(), p.value.options()));
      for (checkpoint::NamedTensor& tensor :
           run::fillable_weights(parameters, p, [this](const auto& body) { attempt(body); }))
        tensors.push_back(std::move(tensor));
    }
    for (const nn::Buffer& buffer : parameters.buffers())
      if (buffer.value.defined() && buffer.use == nn::BufferUse::Model)
        tensors.push_back({buffer.name, buffer.value, buffer.spec});
    return tensors;
  }

  /// Runs body(), whose first error waits for the ranks to agree.
  void attempt(const std::function<void()>& body) {
    try {
      body();
    } catch (...) {
      if (!failure_) failure_ = std::current_exception();
    }
  }

  /// Draws the values with which a run starts, in the dtype in which it draws them.
  void draw(const std::vector<checkpoint::NamedTensor>& tensors) {
    const nn::Parameters& parameters = model_->parameters();
    tensor::Held held;
    for (const checkpoint::NamedTensor& tensor : tensors) {
      const auto& all = parameters.declared();
      const auto found = std::find_if(all.begin(), all.end(), [&](const auto& p) { return p.name == tensor.name; });
      if (found == all.end()) continue;  // a buffer
      const auto form = parameters.form_of(*found);
      nn::Parameter drawn = *found;
      drawn.spec = tensor.spec;  // if codes are stored, the tensor is the whole parameter
      const at::ScalarType type =
          form && form->filling() == nn::FrozenFilling::Elements ? form->dtype() : parameters.options().dtype;
      const at::Tensor whole = at::empty(drawn.spec.local_shape(parameters.coordinates()), at::dtype(type));
      parameters.draw(drawn, whole);
      tensor.value.write_into(held);
      held.value.copy_(tensor.part ? whole.flatten().narrow(0, tensor.part->first, tensor.part->size) : whole);
    }
  }

  comm::Mesh& mesh_;
  int64_t micro_batches_;
  std::unique_ptr<nn::Fp8Products> fp8_;  // null without fp8
  std::exception_ptr failure_;            // first error of attempt()
  std::unique_ptr<distributed::DistributedModel> model_;
  std::unique_ptr<run::StreamedWeights> weights_;  // null = they are in memory; destroyed before the model
};

/// The work of precompute() after the run was resolved.
class Precompute {
 public:
  Precompute(comm::World& world, const run::Config& config, const run::OwnTables& tables, const run::Program& program,
             const run::Preparation& how)
      : mesh_(world, config.parallel.axes()), config_(config), cache_("") {
    const auto busy = world.busy("preparing the reference");
    comm::agree(mesh_.all(), at::kCPU, [&] {
      device_ = comm::choose_device(config.run.device, world.local_rank(), *how.devices);
      data_ = run::open_data(config, program, "", static_cast<int>(config.parallel.replica_of(world.rank())), device_);
      reference_ = resolve_reference(config, tables, data_->shape, program);
    });
    mesh_.connect(device_);
    std::string folder;
    comm::agree(mesh_.all(), at::kCPU, [&] {
      if (world.rank() != 0) return;
      settle(tables, how.resumes && checkpoint::latest(RunFolder(config.run.folder).checkpoints()));
      folder = cache_.folder();
    });
    settled_ = comm::broadcast_text(mesh_.all(), at::kCPU, 0, settled_);
    cache_ = ScoreCache(comm::broadcast_text(mesh_.all(), at::kCPU, 0, folder));
    comm::agree(mesh_.all(), at::kCPU, [&] { cache_.read(); });
    is_mismatched_ = tables.as<run::AlignmentKeys>("alignment").method == "kto";
    const auto at = mesh_.coordinates();
    writes_ = at.index({"pipeline", "sequence", "tensor"}) == 0;
  }

  Precomputed work() {
    const auto busy = mesh_.world().busy("computing the log-probabilities of the reference");
    for (int64_t i = 0; i < config_.training.steps && !(has_seen_all() && !is_mismatched_); ++i) add(*data_->training);
    if (data_->held_out) {
      const int64_t batch = config_.training.batch_size, all = (data_->held_out->samples() + batch - 1) / batch;
      for (int64_t i = 0; i < std::min(config_.training.evaluate_batches, all); ++i) add(*data_->held_out);
    }
    flush();
    const double ranks = static_cast<double>(mesh_.all().size() / config_.parallel.replicas());
    return {.computed = static_cast<int64_t>(comm::sum(mesh_.all(), static_cast<double>(counts_.computed)) / ranks),
            .found = static_cast<int64_t>(comm::sum(mesh_.all(), static_cast<double>(counts_.found)) / ranks)};
  }

 private:
  /// Chooses the folder of the cache, compares it with the reference, and begins it if it is new. On rank 0; it does
  /// not communicate.
  void settle(const run::OwnTables& tables, bool resumes) {
    const ScoreOrigin now = origin_of(config_, *reference_, data_->training->state());
    const std::string named = tables.as<run::ReferenceKeys>(run::kReference).cache;
    const RunFolder folder(config_.run.folder);
    if (named.empty() && !resumes) return begin_next(folder, now);
    cache_ = ScoreCache(named.empty() ? folder.reference() : named);
    const std::optional<ScoreOrigin> before = cache_.origin();
    if (!before) return cache_.begin(now);
    ScoreOrigin kept = now;
    kept.weights = before->weights;
    const std::string others = kept.differences(*before), all = now.differences(*before);
    if (all.empty()) return;
    if (resumes && others.empty() && !before->weights.empty()) {
      // The reference stays the one of the start.
      std::error_code ignored;
      const std::string manifest = manifest_in(before->checkpoint);
      const bool is_there = !before->checkpoint.empty() && std::filesystem::exists(manifest, ignored) &&
                            file_checksum(manifest) == before->blocks;
      settled_ = is_there ? before->checkpoint : kGone;
      return;
    }
    throw Error(kComponent, concat(cache_.folder(), " must be of this reference and these data: it differs in ", all,
                                   "; name another folder with reference.cache, restore these, or delete the folder"));
  }

  /// Begins the cache of a run that starts. An earlier run in the folder has its own until it is replaced. Its scores
  /// are taken over if they can be read; otherwise they are computed.
  void begin_next(const RunFolder& folder, const ScoreOrigin& now) {
    cache_ = ScoreCache(folder.next_reference());
    const std::optional<ScoreOrigin> before = cache_.origin();
    if (before && now.differences(*before).empty()) return;
    cache_.remove();
    cache_.begin(now);
    ScoreCache earlier(folder.reference());
    try {
      const std::optional<ScoreOrigin> of_earlier = earlier.origin();
      if (!of_earlier || !now.differences(*of_earlier).empty()) return;
      earlier.read();
    } catch (const Error&) {
      return;
    }
    cache_.add(earlier);
    cache_.flush();
  }

  /// Returns true if all sources were read to the end of an epoch.
  bool has_seen_all() const {
    const nlohmann::json state = data_->training->state();
    return state.contains("at") && data::MixPosition::decode(state["at"]).whole_epochs() > 0;
  }

  /// Computes the texts of the next batch that are not in the cache. Ranks of other replicas take part in a pass,
  /// because models may exchange tokens with them.
  void add(data::Batches& batches) {
    tensor::Batch batch;
    std::vector<TextKey> keys;
    int64_t missing = 0;
    comm::agree(mesh_.all(), at::kCPU, [&] {
      batch = batches.next();
      keys = keys_of(batch, kTexts);
      missing = std::count_if(keys.begin(), keys.end(), [&](const auto& key) { return !cache_.find(key); });
    });
    counts_.found += static_cast<int64_t>(keys.size()) - missing;
    counts_.computed += missing;
    if (comm::sum(mesh_.all(), static_cast<double>(missing)) == 0) return;
    if (!passes_) begin_passes();
    const at::Tensor sums = passes_->sums(batch);
    const double* values = sums.const_data_ptr<double>();
    for (const TextKey& key : keys) cache_.add(key, *values++);
    if (++done_ % kPassesOfAFile == 0) flush();
  }

  void begin_passes() {
    require(settled_ != kGone, kComponent,
            "the reference must have the weights of the start of the run: got others in ",
            reference_->model.source.path, ", and ", cache_.folder(),
            " lacks log-probabilities of texts that the run reads; restore them, or lower training.steps");
    if (!settled_.empty()) reference_->model.source.checkpoint = settled_;
    passes_ = std::make_unique<ReferencePasses>(mesh_, config_, *reference_, device_);
  }

  void flush() {
    comm::agree(mesh_.all(), at::kCPU, [&] {
      if (writes_)
        cache_.flush();
      else
        cache_.leave_to_others();
    });
  }

  static constexpr char kGone[] = "gone";  // value of settled_ if the weights of the start are not there any more

  comm::Mesh mesh_;
  run::Config config_;
  at::Device device_ = at::kCPU;
  ScoreCache cache_;
  std::optional<run::RunData> data_;
  std::optional<Reference> reference_;
  // The checkpoint of the start, if the run resumes; "" = the present weights are those
  std::string settled_;
  std::unique_ptr<ReferencePasses> passes_;
  Precomputed counts_;
  int64_t done_ = 0;
  bool writes_ = false, is_mismatched_ = false;
};

}  // namespace

Precomputed precompute(comm::World& world, const run::Config& config, const run::OwnTables& tables,
                       const run::Program& program, const run::Preparation& how) {
  if (!run::has_reference(tables) || !tables.as<run::ReferenceKeys>(run::kReference).precompute) return {};
  return Precompute(world, config, tables, program, how).work();
}

}  // namespace colossal::align
