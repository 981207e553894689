#include "support/trap_kernels.h"

#include <atomic>
#include <tuple>

#include "support/emulated_block.h"
#include "support/trap_backend.h"
#include "support/trap_memory.h"

#define COLOSSAL_SIMT
#include "colossal/ops/lanes.h"

namespace colossal::ops {
namespace {

std::atomic<int64_t> launched = 0;

/// Returns the accessible address of a kernel's argument, because the pointers that the kernel gets are in the
/// forbidden mapping. Errors: throws for memory of the host.
template <class T>
T* reachable(T* p) {
  return static_cast<T*>(test::TrapMemory::of_process().accessible(p));
}
template <class T>
T reachable(const T& number)
  requires(!std::is_pointer_v<T>)
{
  return number;
}
template <class T>
GatedRows<T> reachable(GatedRows<T> rows) {
  rows.gate = reachable(rows.gate);
  rows.up = reachable(rows.up);
  return rows;
}
template <class T>
UpdateBuffers<T> reachable(UpdateBuffers<T> u) {
  u.values = reachable(u.values);
  u.out = reachable(u.out);
  for (T*& state : u.states) state = reachable(state);
  u.gradients = test::TrapMemory::of_process().accessible(u.gradients);
  u.copy = test::TrapMemory::of_process().accessible(u.copy);
  return u;
}

template <class T>
RotaryRows<T> reachable(RotaryRows<T> rows) {
  rows.x = reachable(rows.x);
  rows.y = reachable(rows.y);
  rows.positions = reachable(rows.positions);
  rows.frequencies = reachable(rows.frequencies);
  return rows;
}
template <class T>
DroppedRows<T> reachable(DroppedRows<T> rows) {
  rows.x = reachable(rows.x);
  rows.y = reachable(rows.y);
  return rows;
}
template <class T>
SoftmaxRows<T> reachable(SoftmaxRows<T> rows) {
  rows.logits = reachable(rows.logits);
  rows.labels = reachable(rows.labels);
  for (T** numbers : {&rows.largest, &rows.sums, &rows.targets}) *numbers = reachable(*numbers);
  return rows;
}
template <class T>
ScoreRows<T> reachable(ScoreRows<T> rows) {
  rows.logits = reachable(rows.logits);
  rows.labels = reachable(rows.labels);
  for (T** numbers : {&rows.largest, &rows.sums, &rows.targets, &rows.moments}) *numbers = reachable(*numbers);
  for (const T** numbers : {&rows.log_sums, &rows.entropies, &rows.of_value, &rows.of_entropy})
    *numbers = reachable(*numbers);
  return rows;
}
inline CodedNumbers reachable(CodedNumbers coded) {
  coded.table.values = reachable(coded.table.values);
  coded.table.runs = reachable(coded.table.runs);
  coded.codes = reachable(coded.codes);
  coded.scales = reachable(coded.scales);
  return coded;
}

/// The number of blocks that are resident on the device at a time. Each of them runs several blocks in turn.
constexpr int64_t kResidentBlocks = 3;
constexpr int kBlockThreads = 16;  // number of threads, unless the kernel requires another one

template <class Body, class... Arguments>
void launch(const Blocks& blocks, Body body, const Arguments&... given) {
  ++launched;
  const auto run = [blocks, body, arguments = std::tuple<Arguments...>(reachable(given)...)] {
    for (int64_t first = 0; first < std::min(kResidentBlocks, blocks.count); ++first)
      test::EmulatedBlock::run(blocks.threads > 0 ? blocks.threads : kBlockThreads, first % 2 == 1, [&] {
        for (int64_t block = first; block < blocks.count; block += kResidentBlocks)
          std::apply([&](const Arguments&... all) { body(block, all...); }, arguments);
      });
  };
  run();
  test::record_call({c10::DeviceType::PrivateUse1, test::current_trap_device()}, run);
}

}  // namespace
}  // namespace colossal::ops

#include "colossal/ops/device/table.h"

namespace colossal::test {
namespace {

const ops::DeviceTables& trap_tables(bool run) {
  static const ops::DeviceTables own = ops::device_tables_of_unit([] { return true; }),
                                 foreign = ops::device_tables_of_unit([] { return false; });
  return run ? own : foreign;
}

}  // namespace

TrapKernels::TrapKernels(bool run) : tables_(c10::DeviceType::PrivateUse1, &trap_tables(run)), before_(ops::launched) {}

int64_t TrapKernels::launches() const { return ops::launched - before_; }

}  // namespace colossal::test
