#include "support/emulated_block.h"

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <vector>

#include "colossal/base/error.h"

namespace colossal::test {
namespace {

constexpr size_t kStackBytes = 64 << 10;

enum class At { Work, Warp, Block, End };

struct Thread {
  ucontext_t context;
  At at = At::Work;
  alignas(16) std::byte given[16];
};

struct Block {
  Block(int size, bool backwards, const std::function<void()>& thread)
      : body(thread),
        backwards(backwards),
        threads(static_cast<size_t>(size)),
        stacks(new std::byte[threads.size() * kStackBytes]) {}

  const std::function<void()>& body;
  const bool backwards;
  ucontext_t host;
  std::vector<Thread> threads;
  int turn = 0;
  alignas(16) std::byte scratch[16 * EmulatedBlock::kMaxThreads / EmulatedBlock::kWarp];
  std::unique_ptr<std::byte[]> stacks;  // not initialized, so pages that no thread uses take no memory

  std::span<Thread> warp(int number) {
    return std::span(threads).subspan(static_cast<size_t>(number * EmulatedBlock::kWarp), EmulatedBlock::kWarp);
  }
  int in_order(int i, int of) const { return backwards ? of - 1 - i : i; }
  void wait(At place) {
    Thread& self = threads[static_cast<size_t>(turn)];
    self.at = place;
    swapcontext(&self.context, &host);
  }
};

thread_local Block* at_work = nullptr;

void enter() {
  at_work->body();
  at_work->wait(At::End);
}

bool all_at(std::span<const Thread> threads, At place) {
  return std::all_of(threads.begin(), threads.end(), [&](const Thread& t) { return t.at == place; });
}
void release(std::span<Thread> threads) {
  for (Thread& t : threads) t.at = At::Work;
}

/// Runs a warp until all its threads wait for the block, or have ended.
void run_warp(Block& block, int number) {
  const std::span<Thread> warp = block.warp(number);
  while (true) {
    for (int i = 0; i < EmulatedBlock::kWarp; ++i) {
      const int lane = block.in_order(i, EmulatedBlock::kWarp);
      block.turn = number * EmulatedBlock::kWarp + lane;
      if (warp[static_cast<size_t>(lane)].at == At::Work)
        swapcontext(&block.host, &warp[static_cast<size_t>(lane)].context);
    }
    if (all_at(warp, At::Block) || all_at(warp, At::End)) return;
    require(all_at(warp, At::Warp), "emulated block", "the threads of warp ", number, " wait in different places");
    release(warp);
  }
}

}  // namespace

void EmulatedBlock::run(int threads, bool backwards, const std::function<void()>& thread) {
  require(threads > 0 && threads <= kMaxThreads && threads % kWarp == 0, "emulated block", "of up to ", kMaxThreads,
          " threads, whole warps of ", kWarp, ": got ", threads);
  Block block(threads, backwards, thread);
  for (size_t i = 0; i < block.threads.size(); ++i) {
    ucontext_t& context = block.threads[i].context;
    getcontext(&context);
    context.uc_stack = {.ss_sp = block.stacks.get() + i * kStackBytes, .ss_flags = 0, .ss_size = kStackBytes};
    context.uc_link = nullptr;
    makecontext(&context, &enter, 0);
  }
  at_work = &block;
  while (!all_at(block.threads, At::End)) {
    for (int i = 0; i < threads / kWarp; ++i) {
      const int warp = block.in_order(i, threads / kWarp);
      if (!all_at(block.warp(warp), At::End)) run_warp(block, warp);
    }
    if (all_at(block.threads, At::End)) break;
    require(all_at(block.threads, At::Block), "emulated block", "some threads wait for others that have ended");
    release(block.threads);
  }
}

int EmulatedBlock::thread() { return at_work->turn; }
int EmulatedBlock::threads() { return static_cast<int>(at_work->threads.size()); }
void EmulatedBlock::wait_for_block() { at_work->wait(At::Block); }
void EmulatedBlock::wait_for_warp() { at_work->wait(At::Warp); }
void* EmulatedBlock::scratch() { return at_work->scratch; }
void* EmulatedBlock::scratch_of(int thread) { return at_work->threads[static_cast<size_t>(thread)].given; }

}  // namespace colossal::test
