#include "colossal/train/memory_need.h"

#include <c10/core/ScalarType.h>

#include <cmath>
#include <cstdio>

#include "colossal/base/error.h"
#include "colossal/base/machine.h"
#include "colossal/optim/config.h"
#include "colossal/train/engine.h"

namespace colossal::train {
namespace {

/// What every transformer has: q, k, v and output, and two matrices of the feed-forward layer at least.
double least_elements(const models::ModelShape& s) {
  const double hidden = static_cast<double>(s.hidden),
               heads = static_cast<double>(s.heads + s.kv_heads) * static_cast<double>(s.head_dim);
  const double layer = 2 * hidden * heads + 2 * hidden * static_cast<double>(s.ffn);
  const bool projects = s.task().objective != models::Objective::Class;
  const double tables = projects && !s.tied ? 2 : 1;
  return static_cast<double>(s.layers) * layer + static_cast<double>(s.vocabulary) * hidden * tables;
}

std::string readable(double bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  int unit = 0;
  for (; bytes >= 1024 && unit < 6; ++unit) bytes /= 1024;
  char text[64];
  std::snprintf(text, sizeof text, "%.3g %s", bytes, units[unit]);
  return text;
}

}  // namespace

MemoryNeed least_memory(const run::Config& config, const models::ModelShape& shape) {
  const distributed::ParallelConfig& p = config.parallel;
  const double replicas = static_cast<double>(p.copies()),
               sharers = p.zero_sharers > 0 ? static_cast<double>(p.zero_sharers) : replicas;
  const auto copies = [&](int64_t shared_from) { return p.zero >= shared_from ? replicas / sharers : replicas; };
  const double size = static_cast<double>(c10::elementSize(config.precision.dtype()));
  const double exact = config.precision.has_masters() ? 4 : size;
  MemoryNeed need{.elements = least_elements(shape)};
  need.parameters = need.elements * size * copies(3);
  need.gradients = need.elements * size * copies(2);
  need.states = need.elements *
                ((config.precision.has_masters() ? exact : 0) + optim::least_state_bytes(config.optimizer, exact)) *
                copies(1);
  return need;
}

double usable_memory() {
  const Machine machine = describe_machine();
  const double all = static_cast<double>(machine.memory_total), limit = static_cast<double>(machine.memory_limit);
  return (limit > 0 ? std::min(all, limit) : all) + static_cast<double>(machine.swap_total);
}

void check_memory(const run::Config& config, const models::ModelShape& shape, at::Device device, int64_t local,
                  double limit) {
  const int64_t ranks = config.parallel.ranks();
  if (limit <= 0 || !device.is_cpu() || !config.memory.disk.empty() ||
      (config.parallel.pipeline.size > 1 && local < ranks))
    return;
  const MemoryNeed need = least_memory(config, shape);
  const double here = static_cast<double>(local) / static_cast<double>(ranks);
  require(need.total() * here <= limit, "model", "a model of ", shape.layers, " layers, hidden ", shape.hidden,
          " and vocabulary ", shape.vocabulary, " (", need.elements / 1e9,
          " billion parameters or more) does not fit: got parameters ", readable(need.parameters * here),
          ", gradients ", readable(need.gradients * here), " and states of ", config.optimizer.name, " ",
          readable(need.states * here), " at least on the ", local, " rank(s) of this machine, which has ",
          readable(limit), "; take a smaller model (model.layers, model.hidden), ",
          config.parallel.zero < 3 && config.parallel.copies() > 1 ? "shard more (parallel.zero = 3), " : "",
          "fewer replicas here (parallel.data) or more machines");
}

}  // namespace colossal::train
