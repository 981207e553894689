// The weights with which the models of a run start, unless a checkpoint has them.
#include <algorithm>
#include <set>

#include "colossal/base/error.h"
#include "colossal/base/model_path.h"
#include "colossal/comm/agreement.h"
#include "colossal/comm/mesh.h"
#include "colossal/comm/part_of_world.h"
#include "colossal/models/clip_text_words.h"
#include "colossal/models/registry.h"
#include "colossal/models/unet_control_net.h"
#include "colossal/models/unet_image_prompt.h"
#include "colossal/run/adapter_source.h"
#include "colossal/run/adapter_weights.h"
#include "colossal/run/control_source.h"
#include "colossal/run/external_names.h"
#include "colossal/run/further_model.h"
#include "colossal/run/image_prompt_source.h"
#include "colossal/run/learned_words.h"
#include "colossal/run/low_rank_adapter.h"
#include "colossal/run/model_source.h"
#include "colossal/run/objectives/diffusion/diffusion_objective.h"
#include "colossal/run/saved_model.h"
#include "colossal/train/trainer.h"

namespace colossal::train {

void Trainer::import_weights(bool resumed) {
  import_main(resumed);
  if (!resumed && data_.low_rank && !data_.low_rank->from.empty()) import_adapters();
  if (!resumed) import_control();
  if (!resumed) import_image_prompt();
  if (!resumed) import_words();
  for (const run::ResolvedFurther& further : data_.further) {
    if (further.model.use == run::ModelUse::WithoutAdapters) {
      import_originals(further.model.name);
      continue;
    }
    // A discriminator has no source with trained weights.
    const bool may_have_weights = data_.objective.tables.text(further.model.name + ".from").has_value();
    if (further.source.is_preset && further.model.from.empty() && may_have_weights && !resumed && is_first())
      options_.notices.push_back(concat(further.model.name, " starts from random weights of the preset ",
                                        further.source.path, "; set ", further.model.name,
                                        ".from to use trained ones"));
    if (further.source.is_preset) continue;
    if (resumed && further.model.use == run::ModelUse::Trained) continue;
    import_further(further);
  }
}

void Trainer::import_further(const run::ResolvedFurther& further) {
  const std::vector<std::string> may_lack =
      further.source.has_new_head ? run::head_that_may_lack(further.source.shape) : std::vector<std::string>();
  const std::vector<std::string> lacking =
      import_model(further.source, further.model.name, [](const std::string&) { return true; }, may_lack);
  if (!lacking.empty() && is_first())
    options_.notices.push_back(concat(further.source.path, " holds no ", lacking.front(), ": that head starts at 0"));
}

void Trainer::import_main(bool resumed) {
  std::set<std::string> saved;
  size_t parameters = 0;
  for (const nn::Parameter& p : engine_->parameters().declared()) {
    if (!p.model.empty()) continue;
    ++parameters;
    if (p.treatment.saved) saved.insert(p.name);
  }
  const bool has_all = resumed && saved.size() == parameters;
  for (const nn::Buffer& buffer : engine_->parameters().buffers()) saved.insert(buffer.name);
  const std::string& from = config_.model.from;
  if (from.empty() || has_all) return;
  const models::ModelShape& shape = engine_->model().shape;
  const run::ModelSource source = main_source();
  const auto takes = [&](const std::string& weight) { return !resumed || !saved.contains(weight); };
  const std::vector<std::string> lacking = import_model(source, "", takes, run::head_that_may_lack(shape));
  if (resumed || !is_first()) return;
  if (source.checkpoint.empty())
    if (auto notice = run::notice_of_left_out(from, shape)) options_.notices.push_back(*notice);
  if (!lacking.empty())
    options_.notices.push_back(
        concat(from, " holds no ", lacking.front(), " of this model's shape",
               lacking.size() > 1 ? concat(" and ", lacking.size() - 1, " more") : "",
               shape.outputs() > 0 ? ": that head starts at 0" : ": that part of the head is initialized at random"));
}

run::ModelSource Trainer::main_source() {
  const std::string& from = config_.model.from;
  run::ModelSource source;
  comm::agree(all_ranks(), at::kCPU, [&] {
    require_model_path(from, "model");  // otherwise the name of a preset would stand for random weights
    source = run::find_source(from, options_.program);
  });
  source.shape = engine_->model().shape;  // with the head and the positions of this run
  return source;
}

void Trainer::import_originals(const std::string& model) {
  const auto& all = engine_->parameters().declared();
  const bool has_some = std::any_of(all.begin(), all.end(), [&](const nn::Parameter& p) { return p.model == model; });
  if (!has_some || config_.model.from.empty()) return;  // drawn as those of the main model
  const run::ModelSource source = main_source();
  const auto busy = world_.busy("reading " + source.path);
  std::vector<checkpoint::NamedTensor> weights = weights_of(model);
  for (checkpoint::NamedTensor& weight : weights) weight.name.erase(0, model.size() + 1);  // as the source has them
  run::read_source(source, engine_->parameters(), std::move(weights), engine_->mesh(), "",
                   run::head_that_may_lack(source.shape));
  engine_->weights_loaded();
}

void Trainer::import_adapters() {
  const std::string& from = data_.low_rank->from;
  const auto busy = world_.busy("reading " + from);
  run::AdapterSource source;
  comm::agree(all_ranks(), at::kCPU, [&] {
    source = run::open_adapters(from);
    if (!is_first() || source.peft) return;
    const std::string trained_on = run::base_checksum_of(source);
    require(trained_on.empty() || trained_on == base_checksum_, "adapter", "the adapters of ", from,
            " must be trained further on the base on which they were trained: got other weights in model.from = \"",
            config_.model.from, "\"; set model.from as that run has it");
  });
  const models::ModelShape& shape = engine_->model().shape;
  const run::AdapterWeights weights = run::read_adapters(source, shape, engine_->mesh());
  run::fill_adapters(weights, shape, engine_->parameters(), weights_of(""), engine_->mesh());
  engine_->weights_loaded();
}

void Trainer::import_control() {
  const models::ModelShape& shape = engine_->model().shape;
  if (!models::has_control(shape)) return;
  const std::string from = run::adapter_keys(config_).from;
  std::vector<checkpoint::NamedTensor> weights = weights_of("");
  const std::vector<checkpoint::NamedTensor> own = run::take_control(engine_->parameters(), weights);
  if (!from.empty()) {
    const auto busy = world_.busy("reading " + from);
    run::ModelSource base;
    if (!config_.model.from.empty()) base = main_source();
    run::fill_control(from, shape, engine_->parameters(), own, engine_->mesh(), /*uses_average=*/true,
                      base.path.empty() ? nullptr : &base);
  } else if (!config_.model.from.empty()) {
    run::copy_into_control(main_source(), engine_->parameters(), own, engine_->mesh());
  }
  engine_->weights_loaded();
}

void Trainer::import_image_prompt() {
  const models::ModelShape& shape = engine_->model().shape;
  if (!models::has_image_prompt(shape)) return;
  const run::LowRankKeys keys = run::adapter_keys(config_);
  std::vector<checkpoint::NamedTensor> weights = weights_of("");
  const std::vector<checkpoint::NamedTensor> own = run::take_image_prompt(engine_->parameters(), weights);
  const bool has_base = !config_.model.from.empty();
  if (run::continues_image_prompt(keys)) {
    const auto busy = world_.busy("reading " + keys.from);
    run::ModelSource base;
    if (has_base) base = main_source();
    run::fill_image_prompt(keys.from, shape, engine_->parameters(), own, engine_->mesh(), /*uses_average=*/true,
                           has_base ? &base : nullptr);
  } else if (has_base) {
    run::copy_into_image_prompt(main_source(), engine_->parameters(), own, engine_->mesh());
  }
  engine_->weights_loaded();
}

void Trainer::import_words() {
  const models::ModelShape& shape = engine_->model().shape;
  const auto* objective = dynamic_cast<const run::DiffusionObjective*>(&engine_->objective());
  if (models::learned_rows(shape) == 0 || objective == nullptr) return;
  const run::PipelineSource& pipeline = objective->pipeline();
  const auto encoders = static_cast<int64_t>(pipeline.captions.size());
  std::vector<at::Tensor> rows;
  for (int64_t i = 0; i < encoders; ++i) {
    const run::CaptionSource& source = pipeline.captions[static_cast<size_t>(i)];
    const auto busy = world_.busy("reading " + source.encoder);
    comm::agree(all_ranks(), at::kCPU, [&] {
      comm::PartOfWorld alone(world_, world_.size());
      comm::Mesh mesh(alone, {});
      const run::SavedModel encoder = run::load_model(source.encoder, mesh, {}, at::kCPU, {.tokenizer = "none"});
      rows.push_back(run::first_rows(
          run::with_vectors(config_, run::adapter_keys(config_)),
          run::captions_for(source, pipeline.sizes.captions[static_cast<size_t>(i)], encoder.model->model().shape),
          encoder.model->parameters().at("embedding.weight").value.detach(), i, encoders));
    });
  }
  run::fill_words(rows, shape, engine_->parameters(), weights_of(""), engine_->mesh());
  engine_->weights_loaded();
}

std::string Trainer::checksum_of_base() {
  const auto& all = engine_->parameters().declared();
  const bool leaves_out =
      std::any_of(all.begin(), all.end(), [](const nn::Parameter& p) { return p.model.empty() && !p.treatment.saved; });
  if (config_.model.from.empty() || !leaves_out) return "";
  std::string checksum;
  comm::agree(all_ranks(), at::kCPU, [&] {
    if (!is_first()) return;
    const auto busy = world_.busy("computing the checksum of " + config_.model.from);
    checksum = run::checksum_of_base(config_.model.from, engine_->model().shape, options_.program);
  });
  return comm::broadcast_text(all_ranks(), at::kCPU, 0, checksum);
}

std::vector<checkpoint::NamedTensor> Trainer::weights_of(const std::string& model) {
  std::vector<checkpoint::NamedTensor> weights = engine_->weights();
  std::erase_if(weights, [&](const checkpoint::NamedTensor& weight) {
    const auto is_of = [&](const run::ResolvedFurther& further) {
      return weight.name.starts_with(further.model.name + ".");
    };
    return model.empty() ? std::any_of(data_.further.begin(), data_.further.end(), is_of)
                         : !weight.name.starts_with(model + ".");
  });
  return weights;
}

std::vector<std::string> Trainer::import_model(const run::ModelSource& source, const std::string& model,
                                               const std::function<bool(const std::string& weight)>& takes,
                                               const std::vector<std::string>& may_lack) {
  const auto busy = world_.busy("reading " + source.path);
  std::vector<checkpoint::NamedTensor> weights = weights_of(model);
  std::erase_if(weights, [&](const checkpoint::NamedTensor& weight) { return !takes(weight.name); });
  auto lacking = run::read_source(source, engine_->parameters(), std::move(weights), engine_->mesh(), model, may_lack);
  engine_->weights_loaded();
  return lacking;
}

}  // namespace colossal::train
