// The start of a run, its checkpoints, and what it resumes from them.
#include <ATen/ATen.h>

#include <algorithm>
#include <filesystem>

#include "colossal/base/bytes.h"
#include "colossal/base/checksum.h"
#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/base/json_fields.h"
#include "colossal/base/json_file.h"
#include "colossal/comm/agreement.h"
#include "colossal/memory/tiers/tiered_store.h"
#include "colossal/models/registry.h"
#include "colossal/ops/products/matmul.h"
#include "colossal/parallel/sequence/attention_cost.h"
#include "colossal/plan/prediction.h"
#include "colossal/report/run_records.h"
#include "colossal/run/config_changes.h"
#include "colossal/run/exported_folder.h"
#include "colossal/run/further_model.h"
#include "colossal/run/model_source.h"
#include "colossal/run/replaced_run.h"
#include "colossal/run/stored_config.h"
#include "colossal/train/memory_needs.h"
#include "colossal/train/rank_inputs.h"
#include "colossal/train/run_output.h"
#include "colossal/train/start_folder.h"
#include "colossal/train/trainer.h"

namespace colossal::train {
namespace {

constexpr char kNeeds[] = "needs";  // key in the progress: the models that a checkpoint leaves out

/// A model that checkpoints leave out.
struct NeededModel {
  std::string name, from, checksum;
  std::string checkpoint{},
      blocks{};  // of a run folder: the checkpoint that was read, and the checksum of its manifest

  void fields(Fields& f) {
    f.member("name", name), f.member("from", from), f.member("checksum", checksum);
    f.optional(checkpoint.empty()).member("checkpoint", checkpoint);
    f.optional(blocks.empty()).member("blocks", blocks);
  }
};

std::string manifest_of(const std::string& checkpoint) { return checkpoint + "/manifest.json"; }

/// Returns a list of NeededModel, one for each constant model, the same on every rank: the models that checkpoints of a
/// run leave out. Rank 0 reads the files (run::checksum_of). Communication: comm::agree()
/// and a broadcast over all ranks of `mesh`. Errors: those of run::checksum_of(), on every rank.
nlohmann::json needed_models(const std::vector<run::ResolvedFurther>& further, comm::Mesh& mesh) {
  if (further.empty()) return nlohmann::json::array();
  std::string text;
  comm::agree(mesh.all(), at::kCPU, [&] {
    if (mesh.world().rank() != 0) return;
    const auto busy = mesh.world().busy("computing the checksums of further models");
    std::vector<NeededModel> needs;
    for (const run::ResolvedFurther& one : further) {
      if (!one.is_constant()) continue;
      NeededModel& need = needs.emplace_back(one.model.name, one.source.path, run::checksum_of(one.source));
      if (one.source.checkpoint.empty()) continue;
      need.checkpoint = one.source.checkpoint;
      need.blocks = file_checksum(manifest_of(need.checkpoint));
    }
    text = to_json_list(needs).dump();
  });
  return parse_json(comm::broadcast_text(mesh.all(), at::kCPU, 0, text), "the list of needed models", "model");
}

/// Returns true if the checkpoint that a run read at its start is still there. The run that wrote it may have gone on.
bool is_kept(const NeededModel& before) {
  std::error_code ignored;
  const std::string manifest = manifest_of(before.checkpoint);
  return !before.checkpoint.empty() && std::filesystem::exists(manifest, ignored) &&
         file_checksum(manifest) == before.blocks;
}

/// Returns the names of the models of `saved` that have other weights in `now`, joined; "" if none. Models that are not
/// in `now` are not used any more, such as an encoder whose results are stored from now on. `kept` gets those that come
/// from the same run, whose checkpoint is_kept(): they are no change.
std::string changed_models(const nlohmann::json& now, const nlohmann::json& saved, std::vector<NeededModel>& kept) {
  std::vector<std::string> changed;
  for (const nlohmann::json& stored : saved) {
    const auto before = read_stored<NeededModel>(stored, "model");
    const auto found = std::find_if(now.begin(), now.end(),
                                    [&](const nlohmann::json& present) { return present.at("name") == before.name; });
    if (found == now.end()) continue;
    const auto present = read_stored<NeededModel>(*found, "model");
    const bool has_same_source = present.from == before.from;
    if (present.checksum == before.checksum && (!present.checksum.empty() || has_same_source)) continue;
    if (has_same_source && is_kept(before))
      kept.push_back(before);
    else
      changed.push_back(before.name);
  }
  return join(changed);
}

/// Returns "3.3 MiB over all ranks: frozen parameters 3.3 MiB (device)".
std::string bytes_text(const ModelSize& size) {
  return concat(readable_bytes(size.bytes), " over all ranks: ", plan::to_text(size.needs));
}

/// Returns a line for the log: "teacher: gpt2 of 859008 parameters from gpt2-tiny, frozen, 3.3 MiB over all ranks: ",
/// followed by its needs.
std::string to_string(const run::ResolvedFurther& further, const ModelSize& size) {
  const std::string& name = further.model.name;
  if (further.model.use == run::ModelUse::WithoutAdapters)
    return concat(name, ": the main model without its adapters, with ",
                  size.parameters == 0 ? "no parameters of its own"
                                       : concat("the originals of ", size.parameters, " parameters that train whole, ",
                                                bytes_text(size)));
  return concat(name, ": ", further.source.shape.architecture->name, " of ", size.parameters, " parameters from ",
                further.source.path, ", ", size.trained == 0 ? "frozen" : concat(size.trained, " of them train"),
                further.optimizer ? " by " + further.optimizer->name : "", ", ", bytes_text(size));
}

}  // namespace

void Trainer::settle_folder(const checkpoint::StepFolders& steps) {
  std::optional<int64_t> resumed_after;
  if (options_.start == Start::Resume && !steps.complete.empty()) resumed_after = engine_->steps_done();
  const std::string tokenizer = with_sources().tokenizer();  // of the folder as it is
  set_aside_steps(folder_, options_.start, steps, resumed_after, log_);
  const std::string text = builtin_text();
  write_start_files(folder_, {.config = to_toml(config_),
                              .prediction = options_.prediction,
                              .matmul = ops::matmul_choice().encode(),
                              .builtin_text = data_.is_builtin && text != folder_.builtin_text() ? text : ""});
  const run::StartedModel model{.config = config_.model,
                                .shape = data_.shape,
                                .dtype = config_.precision.has_masters() ? at::kFloat : config_.precision.dtype(),
                                .tokenizer = tokenizer,
                                .chat_template = data_.chat_template,
                                .end_ids = data_.end_ids};
  if (const auto lost =
          run::write_model_files(folder_.path(), model, options_.program.models, resumed_after.has_value()))
    log_.warning(*lost);
  output_ = std::make_unique<RunOutput>(folder_, resumed_after, config_.training.steps, log_);
  output_->record(start_record(resumed_after.value_or(0)));
}

report::StartRecord Trainer::start_record(int64_t steps_done) const {
  const std::string& name = config_.model.from.empty() ? config_.model.name : config_.model.from;
  report::StartRecord start =
      train::start_record(engine_->mesh(), concat(name, " (", engine_->model().shape.architecture->name, ")"),
                          engine_->parameters().numel());
  start.kind = steps_done > 0 ? "resume" : options_.start == Start::Overwrite ? "overwrite" : "new";
  start.after = steps_done;
  start.command = options_.command;
  return start;
}

void Trainer::start() {
  needs_ = std::make_unique<nlohmann::json>(needed_models(data_.further, engine_->mesh()));
  base_checksum_ = checksum_of_base();
  const checkpoint::StepFolders steps = checkpoints().steps();
  const bool has_steps = !steps.complete.empty() || !steps.skipped.empty();
  const bool resumes = options_.start == Start::Resume && (options_.resume_step || has_steps);
  if (resumes) resume(steps);
  import_weights(resumes);
  {
    const auto busy = world_.busy("comparing the weights of ranks");
    require_same_weights(engine_->mesh(), engine_->stored_weights(), engine_->state().sharers,
                         resumes || !config_.model.from.empty() ? WeightOrigin::Read : WeightOrigin::Drawn);
  }
  if (data_.adapter.product)
    if (auto notice = nn::notice_of_experts(engine_->parameters())) options_.notices.push_back(*notice);
  comm::agree(all_ranks(), at::kCPU, [&] {
    if (!is_first()) return;
    for (const std::string& notice : options_.notices) log_.warning(notice);
    settle_folder(steps);
  });
  if (config_.parallel.zero > 0 && config_.parallel.copies() == 1 && is_first())
    log_.warning("parallel.zero = ", config_.parallel.zero,
                 " has no effect on one replica; raise parallel.data or leave zero out");
  if (const auto* tiers = engine_->tiers();
      tiers && tiers->disk() && tiers->disk()->file().is_in_memory() && is_first())
    log_.warning("memory.disk = \"", config_.memory.disk,
                 "\" is a folder in memory, not on a disk: its contents take memory in addition to memory.host");
  log_start();
}

void Trainer::log_start() {
  const ConfiguredRun run{config_, *models_};
  std::vector<MemoryNeed> needs = memory_needs(run, world_.rank());
  std::optional<MemoryNeed> activations;
  if (is_first()) {
    const auto busy = world_.busy("recording a step on shapes");
    activations = activation_need(run, 0);
  }
  if (activations) needs.push_back(*activations);
  log_.info("memory of this rank", activations ? ": " : ", without activations: ", to_string(needs));
  if (const auto& needs_of_samples = data_.objective.row.sample_needs)
    if (const std::vector<MemoryNeed> more = needs_of_samples(*this); !more.empty())
      log_.info("samples also need: ", to_string(more));
  for (const std::string& fact : data_.facts) log_.info(fact);
  if (engine_->recomputation().is_chosen) log_.info(describe(engine_->recomputation()));
  const std::vector<ModelSize> sizes = model_sizes(run);
  const int64_t all = sizes.front().parameters, trained = sizes.front().trained;
  const models::ModelShape& s = engine_->model().shape;
  log_.info(s.architecture->name, " of ", all, " parameters",
            trained < all ? concat(", of which ", trained, " train and ", all - trained, " are frozen") : "", " (",
            s.layers, " layers, hidden ", s.hidden, ") on ", world_.size(), " rank(s): data ", config_.parallel.data,
            config_.parallel.expert.size > 1 ? concat(" x expert ", config_.parallel.expert.size) : "", " x ",
            config_.parallel.sequence.size > 1 ? concat("sequence ", config_.parallel.sequence.size, " (",
                                                        parallel::mode_name(config_.parallel.sequence), ") x ")
                                               : "",
            "tensor ", config_.parallel.tensor.size,
            config_.parallel.tensor.size > 1 ? concat(" (", config_.parallel.tensor.mode, ")") : "",
            config_.parallel.zero > 0 ? concat(" x zero ", config_.parallel.zero) : "",
            config_.parallel.pipeline.size > 1
                ? concat(" x pipeline ", config_.parallel.pipeline.size, " (", config_.parallel.pipeline.schedule, ", ",
                         config_.micro_batches(), " micro-batches)")
                : "",
            world_.size() > 1 ? concat(", transport ", world_.backend()) : "", "; ",
            data_.training->samples() < 0 ? "streamed" : std::to_string(data_.training->samples()), " samples of ",
            data_.sample_tokens, " tokens");
  if (!data_.end_ids.empty() && data_.tokenizer && is_first())
    log_.info("generation stops at ", run::listed_end_tokens(folder_.path(), *data_.tokenizer));
  if (sizes.size() > 1 || trained < all) log_.info("main model: ", bytes_text(sizes.front()));
  for (size_t i = 1; i < sizes.size(); ++i) log_.info(to_string(data_.further.at(i - 1), sizes.at(i)));
}

void Trainer::resume(const checkpoint::StepFolders& steps) {
  checkpoint::Found found;
  run::ConfigChanges changes;
  const auto see = [&](const nlohmann::json& progress) {
    changes = run::changes_since(progress, config_, data_.shape, options_.program);
    const std::string changed = run::listed(changes, run::KeyEffect::Model);
    require(changed.empty() || options_.accept_changed_model, "model",
            "keys that change what the weights compute must be as they were saved: got ", changed,
            "; restore them, or add --accept-changed-model to train these weights as another function");
    check_needed(progress);
  };
  const auto restore = [&](const nlohmann::json& progress) {
    data_.training->restore(progress.at("data"));
    rule_->restore(progress.value("step_rule", nlohmann::json()));
    // The library must be the same as before the stop, because otherwise the results would differ in the last bits.
    if (config_.run.matmul == "auto") ops::set_matmul(ops::MatmulChoice::decode(progress.value("matmul", int64_t{0})));
  };
  try {
    found = checkpoints().resume(*engine_, steps, options_.resume_step, {.check = see, .restore = restore});
  } catch (const checkpoint::OtherRun& error) {
    if (changes.empty()) throw;
    throw Error(error.component(), concat(error.message(), "\nChanged since it was saved: ", run::listed(changes),
                                          ". Restore these values to continue from it, choose another run.folder, or "
                                          "add --overwrite to start from scratch"))
        .mark_on_all_ranks();
  }
  saved_step_ = engine_->steps_done();
  if (is_first())
    for (const auto& [step, skipped] : steps.skipped) log_.warning("an incomplete checkpoint is skipped: ", skipped);
  if (is_first())
    for (const Error& damage : found.damaged)
      log_.warning("a newer checkpoint cannot be read and is skipped: ", damage.message());
  const auto warn = [&](run::KeyEffect effect, const char* what) {
    const std::string changed = run::listed(changes, effect);
    if (!changed.empty() && is_first()) log_.warning(what, ": ", changed);
  };
  warn(run::KeyEffect::Model, "the weights compute something else than when they were saved");
  warn(run::KeyEffect::Training, "the training continues differently than it began");
  const std::string others = run::listed(changes, run::KeyEffect::None);
  log_.info("resumed from ", found.path, others.empty() ? "" : concat("; changed since: ", others));
}

void Trainer::check_needed(const nlohmann::json& progress) {
  const std::string base = progress.value(run::kBaseChecksum, std::string());
  require(base.empty() || base == base_checksum_ || options_.accept_changed_model, "model",
          "model.from must have the weights on which the adapters of the checkpoint were trained: got others in \"",
          config_.model.from, "\"; restore them, or add --accept-changed-model to train with these");
  std::vector<NeededModel> kept;
  const std::string changed = changed_models(*needs_, progress.value(kNeeds, nlohmann::json::array()), kept);
  require(changed.empty() || options_.accept_changed_model, "model",
          "further models must have the weights with which the checkpoint was trained: got others for ", changed,
          "; restore them, or add --accept-changed-model to train with these");
  if (!changed.empty() && is_first()) log_.warning("further models have other weights than before: ", changed);
  for (const NeededModel& before : kept) {
    for (run::ResolvedFurther& further : data_.further)
      if (further.model.name == before.name) further.source.checkpoint = before.checkpoint;
    for (nlohmann::json& need : *needs_)
      if (need.at("name") == before.name) need = to_json_object(before);
    log_.info(before.name, " is read from ", before.checkpoint, ", as at the start of the run");
  }
}

nlohmann::json Trainer::position() const {
  nlohmann::json position{{"data", data_.training->state()}};
  if (nlohmann::json rule = rule_->state(); !rule.is_null()) position["step_rule"] = std::move(rule);
  return position;
}

void Trainer::save(bool last, const nlohmann::json& position) {
  if (saved_step_ == engine_->steps_done()) return;
  comm::agree(all_ranks(), at::kCPU, [&] {
    if (lock_) lock_->check();
  });
  nlohmann::json progress{
      {"matmul", ops::matmul_choice().encode()}, {"config", to_toml(config_)}, {"model", run::values_of(data_.shape)}};
  if (!needs_->empty()) progress[kNeeds] = *needs_;
  if (!base_checksum_.empty()) progress[run::kBaseChecksum] = base_checksum_;
  progress.update(position);
  try {
    checkpoints().save(*engine_, progress, lock_.get());
  } catch (const Error& error) {
    // An error known to all ranks does not end the run if there is an older checkpoint, because finished steps would be
    // lost.
    if (last || saved_step_ < 0 || !error.is_on_all_ranks()) throw;
    log_.write(is_first() ? LogLevel::kWarning : LogLevel::kInfo,
               concat("the checkpoint of step ", engine_->steps_done(), " cannot be written: ", error.what(),
                      "; training continues, the newest checkpoint is that of step ", saved_step_));
    return;
  }
  saved_step_ = engine_->steps_done();
  if (is_first()) run::remove_replaced_run(folder_);
}

}  // namespace colossal::train
