#include "support/parity.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>

#include "colossal/base/error.h"
#include "colossal/data/batch_fields.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/models/registry.h"
#include "colossal/models/task_batch.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/forward_context.h"
#include "colossal/parallel/tensor/activations.h"
#include "colossal/train/engine.h"
#include "support/decorated_world.h"
#include "support/noised_pictures.h"
#include "support/tolerance.h"

namespace colossal::test {
namespace {

using comm::World;

/// Returns the config of the case's ranks or, if `is_serial`, of the process that is the reference.
run::Config make_config(const ParityCase& c, bool is_serial) {
  run::Config config;
  config.precision.mode = "fp64";
  if (!is_serial) {
    config.parallel.data = c.data;
    config.parallel.expert.size = c.expert;
    config.parallel.expert.node = c.expert_node;
    if (c.splits_experts) config.parallel.expert.tensor = "split";
    config.parallel.tensor = c.tensor;
    config.parallel.pipeline = c.pipeline;
    config.parallel.sequence = c.sequences;
    config.memory.recompute = c.recompute;
    config.parallel.zero = c.zero;
    config.parallel.zero_group = c.zero_group;
    config.parallel.reshard_after_forward = c.reshard_after_forward;
    config.memory.disk = c.disk;
    config.memory.host = c.host * config.parallel.ranks();
  }
  config.parallel.chunk_mib = 0.01;  // several chunks
  config.data.sequence = c.sequence;
  config.training.batch_size = c.batch;
  config.training.accumulate = is_serial && c.pipeline.size > 1 ? c.pipeline.micro_batches : c.accumulate;
  config.training.clip = c.clip;
  config.training.steps = c.steps;
  config.training.seed = 3;
  config.optimizer.warmup_steps = std::min<int64_t>(c.steps, 2);
  // A large epsilon, because Adam divides a gradient by its own size. A gradient that is zero except for rounding (of a
  // key's bias) would otherwise become an update of pure noise.
  config.optimizer.epsilon = 1e-3;
  return config;
}

at::Device device_of(const ParityCase& c, const World& world) {
  return c.device ? c.device(world.local_rank()) : at::Device(at::kCPU);
}

bool reads_fields(const ParityCase& c) { return c.shape.task().reads == models::Reads::Fields; }

/// Returns the engine of a rank. A model of fields gets random weights, because a DiT begins with some that are 0.
std::unique_ptr<train::Engine> make_engine(World& world, const ParityCase& c, bool is_serial) {
  const run::Config config = make_config(c, is_serial);
  if (!reads_fields(c)) return train::initialize(world, config, c.shape, device_of(c, world));
  const train::NamedModel model{.shape = c.shape, .objective = prediction_objective(c.shape)};
  auto engine = train::initialize(world, config, model, device_of(c, world));
  set_random_weights(*engine);
  return engine;
}

struct Trace {
  std::vector<double> losses, norms;
  at::Tensor input_gradient;
  std::vector<checkpoint::NamedTensor> gradients;  // gradients of the elements that the rank updates
  std::map<std::string, at::Tensor> parameters;
};

tensor::Batch rows_of(const tensor::Batch& b, int64_t part, int64_t parts) {
  const int64_t rows = b.rows() / parts;
  return b.part(part * rows, rows);
}

/// Returns true for a state of tokens [B, S, H], or [B, T, S, H] with S its tokens. Of a model that names no tokens, a
/// state of three dimensions is one. A condition is none, nor text, which ranks hold otherwise.
bool is_hidden(const models::Model& model, size_t state, const at::Tensor& x) {
  if (model.states.empty()) return x.dim() == 3;
  const auto has_tokens = [](const models::State& one) {
    return std::find(one.dims.begin(), one.dims.end(), tensor::Dim::Token) != one.dims.end();
  };
  const bool names_tokens = std::any_of(model.states.begin(), model.states.end(), has_tokens);
  if (model.states[state].name == "text") return false;
  return names_tokens ? has_tokens(model.states[state]) : x.dim() == 3;
}

/// Returns d(sum of losses) / d(embedded input) of one pass. The gradients of the parameters are zero afterwards.
at::Tensor input_gradient(train::Engine& engine, const tensor::Batch& batch) {
  models::Model& model = engine.model();
  const nn::ForwardContext step = engine.distributed().ready(nn::step_of(batch));
  models::States embedded = models::run_stage(model, {.ends = false}, {}, step);
  std::vector<at::Tensor> hidden;
  for (size_t i = 0; i < embedded.size(); ++i) {
    if (!embedded[i].defined()) continue;  // a state that a block writes first
    embedded[i] = embedded[i].detach().requires_grad_();
    if (is_hidden(model, i, embedded[i])) hidden.push_back(embedded[i]);
  }
  const models::Stage rest{.last = static_cast<int64_t>(model.blocks.size()), .embeds = false};
  engine.objective().loss(model, models::run_stage(model, rest, embedded, step), step).backward();
  engine.zero_grad();
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& x : hidden)  // the frames of a row, if there are some, become rows
    gradients.push_back((x.dim() == 4 ? x.grad().flatten(0, 1) : x.grad()).cpu());
  return at::cat(gradients, 1);  // joins the tokens of several states
}

std::vector<checkpoint::NamedTensor> gradients_of(train::Engine& engine) {
  std::vector<checkpoint::NamedTensor> gradients;
  for (const memory::Shard& shard : engine.store().shards())
    for (const memory::Piece& piece : shard.pieces()) {
      const memory::Lease lease = shard.lease({.gradients = memory::Access::Read});  // a tier takes it back at its end
      const at::Tensor part = lease->gradients.narrow(0, piece.offset, piece.part.size);
      gradients.push_back({piece.parameter->name, part.to(at::kCPU, /*non_blocking=*/false, /*copy=*/true),
                           piece.parameter->spec, piece.part});
    }
  return gradients;
}

Trace trace(World& world, const ParityCase& c, bool is_serial) {
  const auto engine = make_engine(world, c, is_serial);
  const tensor::ReplicaRows own = engine->replica_rows(c.batch);
  Trace t;
  if (c.pipeline.size == 1)
    t.input_gradient = input_gradient(*engine, rows_of(random_batch(c, 0), own.replica, own.replicas));
  for (int64_t i = 0; i < c.steps; ++i) {
    engine->zero_grad();
    t.losses.push_back(engine->train_step(own.of(random_batch(c, i))));
    if (i == 0) t.gradients = gradients_of(*engine);
    t.norms.push_back(engine->step().gradient_norm);
  }
  for (const nn::Parameter& p : engine->parameters())
    t.parameters[p.name] = p.value.detach().to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
  return t;
}

/// Returns this rank's part of a hidden state [B, S, H] of the global batch, as split at the border of a block.
at::Tensor part_of_hidden(const at::Tensor& whole, const ParityCase& c, train::Engine& engine) {
  const tensor::ReplicaRows own = engine.replica_rows(c.batch);
  const at::Tensor documents = rows_of(random_batch(c, 0), own.replica, own.replicas).find("documents");
  const auto cut = [](const at::Tensor& t, int64_t dim, int64_t parts, int64_t index) {
    return t.narrow(dim, index * (t.size(dim) / parts), t.size(dim) / parts);
  };
  const at::Tensor replica = cut(whole, 0, own.replicas, own.replica);
  const parallel::Layout& layout = engine.distributed().layout();
  return parallel::part_of(layout, layout.outside, replica, layout.with_cut({.documents = documents}, whole.size(1)));
}

}  // namespace

tensor::Batch random_batch(const ParityCase& c, int64_t step) {
  if (reads_fields(c)) return noised_pictures(c.shape, c.batch, step);
  auto generator = at::detail::createCPUGenerator(1234 + step);
  const auto ids = at::TensorOptions().dtype(at::kLong);
  const models::Task task = c.shape.task();
  if (task.reads == models::Reads::Images) {
    const at::Tensor images = at::randn({c.batch, task.channels, task.side, task.side}, generator, at::kDouble);
    at::Tensor classes = at::randint(0, task.classes, {c.batch, 1}, generator, ids);
    classes[0][0] = data::kIgnored;  // makes replicas count different numbers of images
    return data::image_batch(images, classes);
  }
  const bool has_classes = task.classes > 0;
  const at::Tensor tokens = at::randint(0, c.shape.vocabulary, {c.batch, c.sequence}, generator, ids);
  at::Tensor labels = at::randint(0, has_classes ? task.classes : c.shape.vocabulary,
                                  {c.batch, task.labels_of(c.sequence)}, generator, ids);
  labels[0][-1] = data::kIgnored;  // makes replicas count different numbers of tokens
  labels[0][0] = data::kIgnored;
  at::Tensor documents = at::zeros({c.batch, c.sequence}, ids);
  if (task.answers())
    documents[0][task.source_of(c.sequence) - 1] = 1;  // marks padding of the source
  else
    documents.slice(1, c.first_document == 0 ? c.sequence / 2 : c.first_document).fill_(1);
  return data::text_batch(tokens, labels, at::arange(c.sequence, ids).expand({c.batch, c.sequence}).contiguous(),
                          documents, has_classes ? tensor::Dim::Other : tensor::Dim::Token);
}

tensor::Batch batch_of_ones(const models::ModelShape& shape, int64_t rows, int64_t sequence) {
  const auto ids = at::TensorOptions().dtype(at::kLong);
  const models::Task task = shape.task();
  if (task.reads == models::Reads::Fields) return noised_pictures(shape, rows, 0);
  if (task.reads == models::Reads::Images)
    return data::image_batch(at::ones({rows, task.channels, task.side, task.side}), at::ones({rows, 1}, ids));
  return data::text_batch(at::ones({rows, sequence}, ids), at::ones({rows, task.labels_of(sequence)}, ids),
                          at::arange(sequence, ids).expand({rows, sequence}).contiguous(),
                          at::zeros({rows, sequence}, ids), task.classes > 0 ? tensor::Dim::Other : tensor::Dim::Token);
}

std::vector<parallel::TensorConfig> tensor_modes() {
  return {{.size = 2, .mode = "1d"},
          {.size = 3, .mode = "1d"},
          {.size = 4, .mode = "1d"},
          {.size = 3, .mode = "1d", .sequence = true},
          {.size = 2, .mode = "1d", .keep_gathered = true, .sequence = true},
          {.size = 4, .mode = "2d"},
          {.size = 9, .mode = "2d"},
          {.size = 4, .mode = "2.5d", .depth = 1},
          {.size = 8, .mode = "2.5d", .depth = 2},
          {.size = 3, .mode = "2.5d", .depth = 3},
          {.size = 12, .mode = "2.5d", .depth = 3},
          {.size = 18, .mode = "2.5d", .depth = 2},
          {.size = 8, .mode = "3d"},
          {.size = 8, .mode = "3d", .keep_gathered = true},
          {.size = 27, .mode = "3d"}};
}

std::vector<parallel::SequenceConfig> sequence_modes() {
  std::vector<parallel::SequenceConfig> modes;
  for (const std::string& name : parallel::sequence_mode_names())
    modes.push_back(name == "usp" ? parallel::SequenceConfig{4, name, 2} : parallel::SequenceConfig{2, name});
  return modes;
}

std::string name_of(const parallel::TensorConfig& c) {
  std::string mode = c.mode;
  std::replace(mode.begin(), mode.end(), '.', '_');
  return concat("size", c.size, "_", mode, c.mode == "2.5d" ? concat("_depth", c.depth) : "",
                c.sequence ? "_sequence" : "", c.keep_gathered ? "_kept" : "");
}

at::Tensor local_part(const at::Tensor& whole, const tensor::ShardSpec& spec,
                      const tensor::MeshCoordinates& coordinates) {
  at::Tensor local = at::zeros(spec.local_shape(coordinates), whole.options());
  for (const tensor::LocalBox& block : spec.local_boxes(coordinates)) {
    at::Tensor to = local, from = whole;
    for (size_t d = 0; d < block.size.size(); ++d) {
      to = to.narrow(d, block.local_start[d], block.size[d]);
      from = from.narrow(d, block.start[d], block.size[d]);
    }
    to.copy_(from);
  }
  return local;
}

at::Tensor local_part(const at::Tensor& whole, const checkpoint::NamedTensor& tensor,
                      const tensor::MeshCoordinates& coordinates) {
  const at::Tensor local = local_part(whole, tensor.spec, coordinates);
  return tensor.part ? local.view({-1}).narrow(0, tensor.part->first, tensor.part->size) : local;
}

void put_part(at::Tensor& whole, const checkpoint::NamedTensor& tensor) {
  const at::Tensor value = tensor.value.clone();
  if (!whole.defined()) whole = at::zeros(tensor.spec.shape, value.options());
  const tensor::FlatPart all{0, whole.numel()}, part = tensor.part.value_or(all);
  whole.view({-1}).narrow(0, part.first, part.size).copy_(value.view({-1}));
}

void check_parity(const ParityCase& c) {
  ParityCase serial = c;
  serial.device = nullptr;
  Trace want;
  // One process computes the micro-batches of the global batch. Their number changes the result only by rounding.
  comm::run_ranks(1, [&](World& world) { want = trace(world, serial, true); });
  const int64_t terms = terms_of_layers(c.shape.layers, c.batch * c.sequence);  // sums over tokens are the longest
  const run::Config config = make_config(c, false);
  // The results must be bitwise equal, or differ by the rounding of `terms` terms.
  const auto compare = [&](const at::Tensor& got, const at::Tensor& want, double limit, const std::string& what) {
    if (c.bitwise)
      expect_equal(got, want, what);
    else
      expect_within(got, want, limit, what);
  };
  const auto compare_numbers = [&](double got, double want, const std::string& what) {
    const at::Tensor whole = at::scalar_tensor(want, at::kDouble);
    compare(at::scalar_tensor(got, at::kDouble), whole, tolerance(whole, terms), what);
  };
  comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](World& true_world) {
    DecoratedWorld world =
        c.collectives_off ? without_collectives(true_world) : losing_a_transfer(true_world, c.lost_transfer);
    const Trace got = trace(world, c, false);
    const auto engine = make_engine(world, c, false);
    const tensor::MeshCoordinates& coordinates = engine->mesh().coordinates();
    if (c.pipeline.size == 1)
      expect_close(got.input_gradient, part_of_hidden(want.input_gradient, c, *engine), terms, "input gradient");
    for (int64_t i = 0; i < c.steps; ++i) {
      compare_numbers(got.losses[i], want.losses[i], concat("loss of step ", i));
      // The norm is summed over the ranks, so it is never bitwise equal.
      const at::Tensor norm = at::scalar_tensor(want.norms[i], at::kDouble);
      expect_close(at::scalar_tensor(got.norms[i], at::kDouble), norm, terms, concat("gradient norm of step ", i));
    }
    std::map<std::string, at::Tensor> whole_gradients;
    for (const auto& g : want.gradients) put_part(whole_gradients[g.name], g);
    for (const auto& g : got.gradients) {
      // The tolerance is computed from the whole gradient, because rounding scales with its size.
      const at::Tensor& whole = whole_gradients.at(g.name);
      compare(g.value.clone(), local_part(whole, g, coordinates), tolerance(whole, terms), "gradient of " + g.name);
    }
    for (const nn::Parameter& p : engine->parameters()) {
      // The limit allows for rounding of the parameter itself, and for rounding of the gradients. An update amplifies
      // the latter by at most learning_rate / epsilon.
      const at::Tensor last = local_part(want.parameters.at(p.name), p.spec, coordinates);
      const double amplified =
          config.optimizer.learning_rate / config.optimizer.epsilon * tolerance(whole_gradients.at(p.name), terms);
      compare(got.parameters.at(p.name), last,
              static_cast<double>(c.steps) * (tolerance(want.parameters.at(p.name), terms) + amplified),
              "after the last step, " + p.name);
    }
  });
}

}  // namespace colossal::test
