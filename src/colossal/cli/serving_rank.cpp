#include "colossal/cli/serving_rank.h"

#include <utility>

#include "colossal/cli/local_world.h"
#include "colossal/comm/agreement.h"
#include "colossal/serve/replicas/served_replicas.h"

namespace colossal::cli {
namespace {

std::unique_ptr<comm::World> join_replicas(const ServeOptions& options) {
  ignore_broken_pipes();
  end_on_stop_signals();  // nothing is lost before the model is loaded
  auto world = join_layout(options.model, options.replicas);
  say_stalls_of_work(*world);
  serve::check_replicas(*world, options.replicas, options.model.layout.ranks());
  return world;
}

}  // namespace

ServingRank::ServingRank(const ServeOptions& options)
    : options_(options),
      world_(join_replicas(options)),
      everyone_(*world_, {{"rank", world_->size()}}),
      part_(*world_, static_cast<int>(options.replicas)),
      mesh_(part_, options.model.layout.axes()) {
  comm::agree(everyone_.all(), at::kCPU, [&] {
    if (speaks()) front_ = std::make_unique<ServerFront>(options);
  });
}

serve::ModelAndDraft ServingRank::load(const run::Loading& loading, const run::Program* program) {
  serve::ModelAndDraft loaded = serve::load_with_draft(options_.model, loading, mesh_, options_.model.layout, program);
  if (speaks()) print_notices(loaded.model);
  return loaded;
}

void ServingRank::make_ready(const std::function<void()>& work) {
  comm::agree(everyone_.all(), at::kCPU, [&] {
    work();
    if (!speaks()) ignore_stop_signals();  // before rank 0 waits for them
  });
  if (speaks()) watch_stop_signals(world_->size() > 1 ? SecondSignal::IsReported : SecondSignal::Ends);
}

int ServingRank::serve(serve::ReplicaLoop& loop, serve::ServedModel model, const std::string& summary) {
  serve::ServedReplicas replicas(part_, loop, options_.limits.max_waiting);
  if (front_) return front_->serve_until_stopped(std::move(model), summary, replicas);
  replicas.run({});
  return 0;
}

}  // namespace colossal::cli
