#include "colossal/predict/drawing_plan.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/json_fields.h"
#include "colossal/base/number.h"
#include "colossal/comm/decorators/recording.h"
#include "colossal/comm/part_of_world.h"
#include "colossal/comm/simulated_world.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/distributed/row_group.h"
#include "colossal/memory/account.h"
#include "colossal/models/autoencoder.h"
#include "colossal/models/autoencoder_clips.h"
#include "colossal/models/autoencoder_kl_rows.h"
#include "colossal/models/autoencoder_tiles.h"
#include "colossal/models/caption_parts.h"
#include "colossal/models/denoiser.h"
#include "colossal/models/image_encoder.h"
#include "colossal/nn/batch_step.h"
#include "colossal/parallel/sequence/config.h"
#include "colossal/plan/cluster_costs.h"
#include "colossal/plan/timeline.h"
#include "colossal/predict/roles.h"
#include "colossal/predict/step.h"
#include "colossal/run/control_source.h"
#include "colossal/run/image_prompt_source.h"
#include "colossal/run/model_source.h"
#include "colossal/run/objectives/diffusion/guidance_ranks.h"
#include "colossal/run/weight_budget.h"
#include "colossal/tensor/device_meant.h"

namespace colossal::predict {
namespace drawing_plan {  // a namespace of its own, because files of a layer may be compiled as one

/// A pass of one part on one rank.
struct Pass {
  StepEvents events;
  int64_t weights = 0, tensors = 0;        // bytes on the device
  int64_t copied = 0, read_from_disk = 0;  // bytes of weights in a pass
};

at::TensorOptions on_meta(at::ScalarType dtype) { return at::TensorOptions(dtype).device(at::kMeta); }

/// Sets which weights of a rank are on the device, and which travel in each pass.
void place_weights(Pass& pass, const nn::Parameters& parameters, const run::MemoryConfig& memory, int64_t ranks) {
  if (!memory.has_tiers()) return;
  const at::Device device = tensor::device_meant(parameters.options().device);
  const run::WeightBudget budget = run::plan_weights(parameters, memory, ranks);
  run::check_weight_budget(budget, memory, ranks, device);
  if (budget.needs_disk()) pass.read_from_disk = budget.residence.all - budget.residence.stays;
  if (device.is_cpu()) {
    pass.weights = std::min(pass.weights, budget.host);
    return;
  }
  int64_t resident = 0;
  for (const nn::Parameter* p : budget.on_device) resident += static_cast<int64_t>(p->value.nbytes());
  pass.copied = pass.weights - resident;
  // Beside what stays there, the device has the chunk in use and the next one.
  pass.weights = std::min(pass.weights, resident + 2 * budget.chunk);
}

/// Who has the weights of a model.
enum class Held { ByAll, ByEach };  // the ranks of a layout together, or each rank whole

/// `mesh`: of all ranks, with run::kGuidanceAxis.
using Work = std::function<void(distributed::DistributedModel& model, comm::Mesh& mesh)>;

Pass recorded(const models::ModelShape& shape, const DrawnLoading& loading, Held held, at::DeviceType device, int rank,
              const Work& work) {
  const tensor::MeantDevice meant(device);
  const at::NoGradGuard no_grad;
  const auto simulated = comm::make_simulated_world(rank, static_cast<int>(loading.ranks()));
  comm::RecordingWorld world(*simulated);
  memory::Account account(memory::Counted::Shapes);
  comm::Mesh mesh(world, run::axes_with_guidance(loading.layout, loading.guidance_ranks));
  comm::PartOfWorld alone(world, world.size());
  const bool is_whole = held == Held::ByEach;
  comm::Mesh own = is_whole ? comm::Mesh(alone, {}) : mesh.without({run::kGuidanceAxis});
  distributed::DistributedModel model(own, is_whole ? distributed::ParallelConfig{} : loading.layout, shape,
                                      {.dtype = loading.dtype, .device = at::kMeta}, {});
  Pass pass{.weights = account.usage().total};
  const int64_t all = pass.weights;
  if (!is_whole) place_weights(pass, model.parameters(), loading.memory, loading.ranks());
  world.clear();
  account.reset_peaks();
  {
    const comm::RecordingWorld::Operations operations(world, comm::RecordingWorld::Detail::All);
    work(model, mesh);
  }
  pass.tensors = account.usage().peak_total - all;
  pass.events = world.events();
  return pass;
}

double seconds_of(const std::vector<Pass>& passes, const plan::Cluster& cluster) {
  const plan::ClusterCosts costs(cluster);
  std::vector<plan::Role> roles;
  double travelling = 0;
  for (const Pass& pass : passes) {
    const int rank = static_cast<int>(roles.size());
    roles.push_back({.name = concat("rank ", rank), .ranks = {rank}, .events = pass.events});
    const double copies = pass.copied > 0 ? costs.host_copy_seconds(static_cast<double>(pass.copied)) : 0,
                 reads = pass.read_from_disk > 0 ? costs.disk_seconds(static_cast<double>(pass.read_from_disk)) : 0;
    travelling = std::max({travelling, copies, reads});
  }
  return std::max(plan::simulate_step(roles, costs).seconds, travelling);
}

double elements_sent(const StepEvents& events) {
  double sum = 0;
  for (const StepEvent& event : events.list)
    if (event.kind == StepEvent::Kind::Call && event.bytes > 0)
      sum += event.bytes / static_cast<double>(c10::elementSize(static_cast<at::ScalarType>(event.dtype)));
  return sum;
}

/// Returns the elements that the rank sends to switch between axes.
double elements_switched(const StepEvents& events) {
  StepEvents switches;
  for (const StepEvent& event : events.list)
    if (event.kind == StepEvent::Kind::Call && event.collective == static_cast<uint8_t>(Collective::AllToAll))
      switches.list.push_back(event);
  return elements_sent(switches);
}

/// Returns the rows of a pass for `pictures` pictures or clips, of which `halves` ranks share the passes of guidance.
int64_t rows_of_pass(const models::Model& model, const DrawnWork& work, int64_t pictures, int64_t halves) {
  const int64_t rows = work.is_guided && halves == 1 ? 2 * pictures : pictures, parts = model.batch_parts;
  return (rows + parts - 1) / parts * parts;
}

/// Returns what `rows` rows are told, with the fields of a model that masks captions.
tensor::Batch told_of(const models::ModelShape& shape, int64_t rows, const ops::PictureSize& cells,
                      at::ScalarType dtype) {
  using tensor::Dim;
  const models::DenoiserSizes sizes = models::denoiser_of(shape);
  tensor::Batch told = models::example_told(shape, rows, cells, dtype);
  if (!sizes.masks_text) return told;
  told.add("text_mask", {at::empty({rows, sizes.text_tokens}, on_meta(at::kLong)), {Dim::Row, Dim::Other}});
  told.add("untold", {at::empty({rows}, on_meta(at::kLong)), {Dim::Row}});
  return told;
}

/// Runs a step of the model for `pictures` pictures or clips. `halves`: the ranks that share the passes of guidance.
void run_step(distributed::DistributedModel& model, comm::Group& halves, const run::PipelineSource& source,
              const DrawnWork& work, int64_t pictures) {
  const int64_t rows = rows_of_pass(model.decoding_model(), work, pictures, halves.size());
  const models::DenoiserSizes& sizes = source.sizes;
  const at::ScalarType exact = at::promote_types(model.parameters().options().dtype, at::kFloat);
  const auto make = [&](int64_t channels) {
    std::vector<int64_t> dims{rows, channels, work.cells.height, work.cells.width};
    if (work.latents > 0) dims.insert(dims.begin() + 2, work.latents);
    return at::empty(dims, on_meta(exact));
  };
  const models::ModelShape& shape = model.decoding_model().shape;
  const tensor::Batch batch = models::denoiser_batch(
      make(sizes.channels + sizes.beside), at::empty({rows}, on_meta(exact)), told_of(shape, rows, work.cells, exact));
  const at::Tensor outputs = model.everywhere(
      nn::step_of(batch),
      [&](int, const models::States& end, const nn::ForwardContext&) {
        return models::predicted_picture(shape, end.at(0), batch).to(exact);
      },
      make(sizes.outputs));
  if (halves.size() > 1) run::gathered_halves(outputs.narrow(0, 0, pictures), halves);
}

/// The parts of a pipeline on a cluster, in memory and at work as diffusion::Drawer and diffusion::PipelineParts have
/// them.
class Planner {
 public:
  Planner(const run::PipelineSource& source, const DrawnWork& work, const DrawnLoading& loading,
          const plan::Profile& profile, const run::Program& program)
      : source_(source),
        work_(work),
        loading_(loading),
        program_(program),
        cluster_(cluster_of(loading.ranks(), profile)),
        device_(profile.device.shared ? at::kCPU : at::kCUDA),
        share_(std::min(work.at_once, (work.count + loading.layout.data - 1) / loading.layout.data)) {}

  DrawingPlan plan() {
    plan_.ranks = loading_.ranks();
    plan_.cluster = cluster_.profile().name;
    plan_.limit_bytes = cluster_.device_bytes();
    for (size_t i = 0; i < source_.captions.size(); ++i) add_text_encoder(i);
    add_image_encoder();
    add_model();
    if (source_.has_latents()) add_decoder();
    int64_t kept = 0;
    for (const DrawnPart& part : plan_.parts) kept += part.is_freed ? 0 : part.weights;
    for (const DrawnPart& part : plan_.parts)
      plan_.peak_bytes = std::max(plan_.peak_bytes, kept + part.peak_bytes - (part.is_freed ? 0 : part.weights));
    plan_.fits = plan_.peak_bytes <= plan_.limit_bytes;
    plan_.assumptions.emplace_back("all parts are in memory together, and one of them computes at a time");
    if (!streams()) return std::move(plan_);
    if (source_.reads_text())
      plan_.assumptions.back() = "one part computes at a time, and the text encoder is in memory only then";
    plan_.assumptions.emplace_back("weights that travel are copied while the model computes");
    return std::move(plan_);
  }

 private:
  bool streams() const { return loading_.memory.has_tiers(); }
  models::ModelShape shape_of(const std::string& part) const { return run::find_source(part, program_).shape; }
  /// Returns the shape of the model with the parts that it gets.
  models::ModelShape shape_of_model() const {
    models::ModelShape shape = shape_of(source_.model);
    if (source_.control) shape = run::with_control(std::move(shape), *source_.control);
    return source_.image_prompt ? run::with_image_prompt(std::move(shape), *source_.image_prompt) : shape;
  }
  int64_t together() const { return share_ * loading_.layout.data; }  // pictures that all replicas draw at once

  /// Records the first `ranks` ranks.
  std::vector<Pass> recorded_by(int64_t ranks, const models::ModelShape& shape, Held held, const Work& work) const {
    std::vector<Pass> passes;
    for (int64_t rank = 0; rank < ranks; ++rank)
      passes.push_back(recorded(shape, loading_, held, device_, static_cast<int>(rank), work));
    return passes;
  }
  /// Adds the part as the rank has it that needs the most.
  void add(const std::string& name, const std::vector<Pass>& passes, bool is_freed = false) {
    const auto bytes = [](const Pass& pass) { return pass.weights + pass.tensors; };
    const Pass& most = *std::max_element(passes.begin(), passes.end(),
                                         [&](const Pass& a, const Pass& b) { return bytes(a) < bytes(b); });
    plan_.parts.push_back({.name = name, .peak_bytes = bytes(most), .weights = most.weights, .is_freed = is_freed});
  }

  void add_text_encoder(size_t i) {
    if (source_.captions[i].encoder.empty()) return;  // the model has it within it
    const models::CaptionPart& part = source_.sizes.captions[i];
    const Pass pass = recorded(shape_of(source_.captions[i].encoder), loading_, Held::ByEach, device_, 0,
                               [&](distributed::DistributedModel& model, comm::Mesh&) {
                                 const at::Tensor ids = at::zeros({1, part.tokens}, on_meta(at::kLong));
                                 models::read_caption(part, model.decoding_model(), ids, ids, work_.clip_skip);
                               });
    add(i == 0 ? "text encoder" : concat("text encoder ", i + 1), {pass}, streams());
    plan_.seconds += (work_.is_guided ? 2 : 1) * seconds_of({pass}, cluster_of(1, cluster_.profile()));
  }

  void add_image_encoder() {
    if (source_.image_encoder.path.empty()) return;
    const models::ModelShape shape = shape_of(source_.image_encoder.path);
    const int64_t side = models::image_encoder_of(shape).side;
    const Pass pass =
        recorded(shape, loading_, Held::ByEach, device_, 0, [&](distributed::DistributedModel& model, comm::Mesh&) {
          models::image_embedding(model.decoding_model(),
                                  at::empty({1, models::kPictureChannels, side, side}, on_meta(loading_.dtype)));
        });
    add("image encoder", {pass});
    plan_.seconds += seconds_of({pass}, cluster_of(1, cluster_.profile()));
  }

  void add_model() {
    const std::vector<Pass> passes = recorded_by(
        plan_.ranks, shape_of_model(), Held::ByAll, [&](distributed::DistributedModel& model, comm::Mesh& mesh) {
          run_step(model, mesh.group(run::kGuidanceAxis), source_, work_, share_);
        });
    add("model", passes);
    for (const Pass& pass : passes) plan_.sent += elements_sent(pass.events);
    add_tokens(passes);
    plan_.step_seconds = seconds_of(passes, cluster_);
    const int64_t batches = (work_.count + together() - 1) / together();
    plan_.seconds += plan_.step_seconds * static_cast<double>(work_.passes * batches);
  }

  void add_tokens(const std::vector<Pass>& passes) {
    const auto patches = [&](int64_t side) { return (side + source_.sizes.patch - 1) / source_.sizes.patch; };
    plan_.tokens = std::max<int64_t>(1, work_.latents) * patches(work_.cells.height) * patches(work_.cells.width);
    if (!parallel::switches_axes(loading_.layout.sequence)) return;
    for (const Pass& pass : passes) plan_.switched += elements_switched(pass.events);
    const bool is_twice = work_.is_guided && loading_.guidance_ranks == 1;
    plan_.switched /= static_cast<double>((is_twice ? 2 : 1) * share_ * loading_.layout.data * loading_.guidance_ranks);
  }

  /// Adds the decoder, whose ranks share the rows of a picture if they have nothing else to decode: those of a replica,
  /// and all of them for a last batch of fewer pictures than replicas.
  void add_decoder() {
    const models::ModelShape shape = shape_of(source_.vae);
    if (work_.frames > 0) return add_decoder_of_clips(shape);
    const int64_t replicas = loading_.layout.data, full = work_.count / together(), rest = work_.count % together();
    std::vector<Pass> all;
    const auto add_pictures = [&](int64_t pictures, bool is_shared) {
      if (pictures == 0) return;
      const bool is_alone = work_.in_tiles || (!is_shared && plan_.ranks == replicas);  // then all ranks do the same
      const std::vector<Pass> passes = recorded_by(is_alone ? 1 : plan_.ranks, shape, Held::ByEach,
                                                   [&](distributed::DistributedModel& model, comm::Mesh& mesh) {
                                                     decode(model, is_shared ? mesh.all() : mesh.all_but("data"));
                                                   });
      plan_.seconds += static_cast<double>(pictures) * seconds_of(passes, cluster_);
      all.insert(all.end(), passes.begin(), passes.end());
    };
    const bool is_shared = !work_.in_tiles && rest < replicas;
    add_pictures(full * share_ + (is_shared ? 0 : (rest + replicas - 1) / replicas), false);
    add_pictures(is_shared ? rest : 0, true);
    add("decoder", all);
  }

  /// Adds the decoder of clips: all ranks share the rows of a frame, or one rank decodes with an autoencoder of clips.
  void add_decoder_of_clips(const models::ModelShape& shape) {
    const models::AutoencoderSizes sizes = models::autoencoder_of(shape);
    const bool is_by_frame = sizes.frames == 0;
    // Chunks are independent, so one of them shows what all need.
    const bool is_by_chunk = sizes.chunk_frames > 0 && work_.frames > sizes.chunk_frames;
    const int64_t frames = is_by_chunk ? sizes.chunk_frames : work_.frames;
    const int64_t ranks = is_by_frame && !work_.in_tiles ? plan_.ranks : 1;
    const std::vector<Pass> passes =
        recorded_by(ranks, shape, Held::ByEach, [&](distributed::DistributedModel& model, comm::Mesh& mesh) {
          if (is_by_frame) return decode(model, mesh.all());
          const at::Tensor latent = at::empty(
              {1, source_.sizes.channels, models::latent_frames(sizes, frames), work_.cells.height, work_.cells.width},
              on_meta(at::promote_types(loading_.dtype, at::kFloat)));
          models::decode_in_chunks(model.decoding_model(), latent, [](const at::Tensor&) {}, frames,
                                   {.parameters = &model.parameters(), .saves_memory = streams()});
        });
    const double times = is_by_frame || is_by_chunk
                             ? static_cast<double>(work_.frames) / static_cast<double>(is_by_frame ? 1 : frames)
                             : 1;
    plan_.seconds += static_cast<double>(work_.count) * times * seconds_of(passes, cluster_);
    add("decoder", passes);
  }

  /// Decodes a picture, of which `sharing` ranks have some rows each.
  void decode(distributed::DistributedModel& model, comm::Group& sharing) const {
    const at::Tensor latent = at::empty({1, source_.sizes.channels, work_.cells.height, work_.cells.width},
                                        on_meta(at::promote_types(loading_.dtype, at::kFloat)));
    distributed::RowGroup ranks(sharing);
    if (work_.in_tiles)
      models::decoded_in_tiles(model.decoding_model(), model.parameters(), latent);
    else
      models::decoded_exactly(model.decoding_model(), model.parameters(), latent, &ranks, streams());
  }

  const run::PipelineSource& source_;
  const DrawnWork& work_;
  const DrawnLoading& loading_;
  const run::Program& program_;
  const plan::Cluster cluster_;
  const at::DeviceType device_;
  const int64_t share_;  // pictures of a replica that are drawn together
  DrawingPlan plan_;
};

}  // namespace drawing_plan

DrawingPlan plan_drawing(const run::PipelineSource& source, const DrawnWork& work, const DrawnLoading& loading,
                         const plan::Profile& profile, const run::Program& program) {
  require(loading.ranks() <= kRecordedRanks, "draw", "a plan of a drawing has at most ", kRecordedRanks, " ranks: got ",
          loading.ranks(), "; plan fewer replicas, which draw independently");
  return drawing_plan::Planner(source, work, loading, profile, program).plan();
}

std::string to_text(const DrawingPlan& plan) {
  std::string text = concat(plan.ranks, plan.ranks == 1 ? " rank" : " ranks", ", ", text_of(plan.seconds, 4),
                            " seconds, of which a step takes ", text_of(plan.step_seconds, 4), "; peak ",
                            readable_bytes(plan.peak_bytes), " a rank\n");
  for (const DrawnPart& part : plan.parts)
    text += concat(part.name, ": ", readable_bytes(part.peak_bytes), ", weights ", readable_bytes(part.weights), "\n");
  text += concat("sent a step: ", text_of(plan.sent, 10), " elements over all ranks\n", plan.tokens, " tokens");
  if (plan.switched > 0)
    text += concat(", and ", text_of(plan.switched, 12),
                   " elements that switches of axes send in a forward pass of a clip");
  text += "\n";
  text += plan.fits ? concat("The drawing fits ", plan.cluster, ".\n")
                    : concat("The drawing does not fit ", plan.cluster, ": a rank needs ",
                             readable_bytes(plan.peak_bytes), ", and there are ", readable_bytes(plan.limit_bytes),
                             "; set --precision bf16, a smaller --size, or --memory.device\n");
  for (const std::string& line : plan.assumptions) text += "- " + line + "\n";
  return text;
}

std::string to_json(const DrawingPlan& plan) {
  nlohmann::ordered_json parts = nlohmann::ordered_json::array();
  for (const DrawnPart& part : plan.parts) parts.push_back({{"name", part.name}, {"peak_bytes", part.peak_bytes}});
  const nlohmann::ordered_json all{{"fits", plan.fits},
                                   {"seconds", plan.seconds},
                                   {"step_seconds", plan.step_seconds},
                                   {"sent", plan.sent},
                                   {"tokens", plan.tokens},
                                   {"switched", plan.switched},
                                   {"peak_bytes", plan.peak_bytes},
                                   {"limit_bytes", plan.limit_bytes},
                                   {"parts", parts}};
  return json_line(all);
}

}  // namespace colossal::predict
