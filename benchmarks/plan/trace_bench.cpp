// Seconds to trace LLaMA-3 8B as a plain module on shapes alone, to cost its operators and to solve for the fastest
// plan of 64 ranks, without a limit of memory and with limits that bind.
//
//   OMP_NUM_THREADS=1 build/release/benchmarks/colossal_trace_bench
#include <cstdio>

#include "colossal/base/bytes.h"
#include "colossal/base/clock.h"
#include "colossal/plan/solver.h"
#include "colossal/trace/trace.h"
#include "trace/modules.h"

namespace {

using namespace colossal;

void solve(const plan::Graph& graph, int64_t memory) {
  const Stopwatch watch;
  const plan::Plan plan = plan::solve(graph, plan::parse_mesh("data=8,tensor=8"), plan::Links{}, {.memory = memory});
  std::printf("solved in %.2f s: %.4f s a step, %s on a rank, %s, at least %.4f s\n", watch.seconds(), plan.seconds,
              readable_bytes(plan.peak_bytes).c_str(), plan.is_proven ? "proven" : "not proven", plan.lower_bound);
}

}  // namespace

int main() {
  const trace::test::LlamaSizes sizes{
      .blocks = 32, .width = 4096, .heads = 32, .kv_heads = 8, .inner = 14336, .vocabulary = 128256};
  trace::test::Llama net(sizes, at::TensorOptions(at::kMeta).dtype(at::kBFloat16));
  const at::Tensor ids = at::empty({8, 4096}, at::TensorOptions(at::kMeta).dtype(at::kLong));
  const Stopwatch watch;
  const trace::TracedModule traced = trace::trace_loss(net, trace::test::loss_of(net), {ids, ids.clone()});
  std::printf("traced %zu nodes in %.2f s\n", traced.graph.nodes.size(), watch.seconds());
  const plan::Plan free = plan::solve(traced.graph, plan::parse_mesh("data=8,tensor=8"), plan::Links{}, {});
  for (const int64_t percent : {0, 90, 80, 60}) solve(traced.graph, free.peak_bytes / 100 * percent);
}
