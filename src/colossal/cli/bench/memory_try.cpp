#include "colossal/cli/bench/memory_try.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>

#include "colossal/base/clock.h"
#include "colossal/base/error.h"
#include "colossal/base/json_fields.h"
#include "colossal/base/json_file.h"
#include "colossal/base/machine.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/data/batch_fields.h"
#include "colossal/memory/host_memory.h"
#include "colossal/memory/tiers/offline_optimum.h"
#include "colossal/memory/tiers/tiered_store.h"
#include "colossal/models/registry.h"
#include "colossal/nn/parameter.h"
#include "colossal/train/engine.h"

namespace colossal::cli {
namespace {

constexpr int64_t kHeadSize = 64;
// Passes of the offline optimum. Only the second half counts, because the first pass starts with empty memory.
constexpr int kPasses = 8;

tensor::Batch random_batch(const run::Config& config, int64_t vocabulary, int64_t step) {
  const auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(config.training.seed + step));
  const int64_t rows = config.training.batch_size, tokens = config.data.sequence;
  const auto ids = at::TensorOptions().dtype(at::kLong);
  const at::Tensor text = at::randint(0, vocabulary, {rows, tokens + 1}, generator, ids);
  return data::text_batch(text.narrow(1, 0, tokens).contiguous(), text.narrow(1, 1, tokens).contiguous(),
                          at::arange(tokens, ids).expand({rows, tokens}).contiguous());
}

void add_moves(MemoryTry& result, const memory::TieredStore& tiers, const memory::TieredStore::Counts& before,
               const train::DeviceUse& device_before, const train::DeviceUse& device_after) {
  result.device_bytes = device_after.peak;
  result.bytes_copied =
      device_after.copied_to - device_before.copied_to + device_after.copied_from - device_before.copied_from;
  const memory::TieredStore::Counts after = tiers.counts();
  result.host_bytes = after.host_bytes, result.disk_bytes = after.disk_bytes;
  result.bytes_read = after.bytes_read - before.bytes_read;
  result.bytes_written = after.bytes_written - before.bytes_written;
  result.evictions = static_cast<double>(after.evictions - before.evictions);
  result.events = tiers.end_record();
  const std::vector<memory::OptimalPass> passes = memory::offline_optimum(result.events, tiers.host_bytes(), kPasses);
  for (int i = kPasses / 2; i < kPasses; ++i) {
    result.optimal_evictions += passes[static_cast<size_t>(i)].evictions / (kPasses / 2);
    result.optimal_bytes_read += passes[static_cast<size_t>(i)].bytes_read / (kPasses / 2);
  }
}

}  // namespace

run::Config grown(run::Config config, Growth growth, int64_t size) {
  if (growth == Growth::Layers) {
    config.model.layers = size;
  } else {
    config.model.heads = config.model.kv_heads = size;
    config.model.hidden = kHeadSize * size;
    config.model.ffn = 4 * config.model.hidden;
  }
  return config;
}

MemoryTry measured_try(const run::Config& config, int64_t steps, bool with_events) {
  memory::keep_host_memory();
  MemoryTry result;
  comm::run_ranks(1, [&](comm::World& world) {
    const models::ModelShape shape = models::built_in().resolve(config.model);
    const auto engine = train::initialize(world, config, shape);
    const memory::TieredStore* tiers = engine->tiers();
    result.parameters = engine->parameters().numel();
    for (int64_t step = 0; step < steps; ++step) {
      const tensor::Batch batch = random_batch(config, shape.vocabulary, step);
      const bool is_last = step + 1 == steps;
      if (is_last && tiers) tiers->begin_record();
      const auto before = tiers ? tiers->counts() : memory::TieredStore::Counts{};
      const auto device_use = [&] { return engine->device_use().value_or(train::DeviceUse{}); };
      const train::DeviceUse device_before = device_use();
      const Stopwatch watch;
      engine->zero_grad();
      result.loss = engine->train_step(batch);
      engine->step();
      result.seconds = watch.seconds();
      if (is_last && tiers) add_moves(result, *tiers, before, device_before, device_use());
    }
  });
  if (!with_events) result.events.clear();
  result.resident_bytes = peak_resident_bytes();
  return result;
}

void MemoryTry::fields(Fields& f) {
  f.member("parameters", parameters);
  f.member("seconds", seconds);
  f.member("loss", loss);
  f.member("resident_bytes", resident_bytes);
  f.member("host_bytes", host_bytes);
  f.member("disk_bytes", disk_bytes);
  f.member("device_bytes", device_bytes);
  f.member("bytes_copied", bytes_copied);
  f.member("bytes_read", bytes_read);
  f.member("bytes_written", bytes_written);
  f.member("evictions", evictions);
  f.member("optimal_evictions", optimal_evictions);
  f.member("optimal_bytes_read", optimal_bytes_read);
  std::vector<int64_t> numbers;  // three of each event, because an object of each would be a long text
  for (const memory::TierEvent& event : events)
    numbers.insert(numbers.end(), {static_cast<int64_t>(event.kind), static_cast<int64_t>(event.number), event.bytes});
  f.member("events", numbers);
  events.clear();
  for (size_t i = 0; i + 2 < numbers.size(); i += 3)
    events.push_back(
        {static_cast<memory::TierEvent::Kind>(numbers[i]), static_cast<size_t>(numbers[i + 1]), numbers[i + 2]});
}

std::string to_json(const MemoryTry& measured) { return to_json_object(measured).dump(); }

MemoryTry memory_try_of(const std::string& line) {
  const nlohmann::json object = parse_json_object(line, "a try", "bench");
  try {
    return read_stored<MemoryTry>(object, "bench");
  } catch (const Error& error) {
    throw Error("bench", concat("the output of a trial must be its measurements: ", error.message()));
  }
}

int64_t largest_that_works(int64_t first, double resolution, const std::function<bool(int64_t)>& works) {
  int64_t good = 0, bad = first;
  while (works(bad)) good = bad, bad *= 2;
  if (good == 0) return 0;
  while (bad - good > std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(good) * resolution))) {
    const int64_t middle = good + (bad - good) / 2;
    (works(middle) ? good : bad) = middle;
  }
  return good;
}

}  // namespace colossal::cli
