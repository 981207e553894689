// One rank of `colossal serve`, for models of every kind.
//
//   ServingRank rank(options);                                     // rank 0 of all answers 503 from here
//   const serve::ModelAndDraft loaded = rank.load(loading, program);
//   rank.make_ready([&] { engine.emplace(...); });                 // from here a stop signal lets requests end
//   serve::EngineLoop loop(rank.part(), rank.mesh(), {.engine = &*engine, ...});
//   return rank.serve(loop, model, ", 2 ranks");
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "colossal/cli/serve_options.h"
#include "colossal/cli/server_front.h"
#include "colossal/comm/mesh.h"
#include "colossal/comm/part_of_world.h"
#include "colossal/comm/world.h"
#include "colossal/serve/model_options.h"
#include "colossal/serve/replica.h"
#include "colossal/serve/service.h"

namespace colossal::cli {

/// The ranks of all replicas, those of the replica of this rank, and, on rank 0 of all, the part that talks HTTP. All
/// ranks call the members that are no accessors, in the same order.
class ServingRank {
 public:
  /// Joins the ranks, and listens on rank 0. Until make_ready() a stop signal ends the process, because nothing is
  /// lost. `options` must outlive this object.
  /// Errors: those of join_layout(), serve::check_replicas() and http::Server.
  explicit ServingRank(const ServeOptions& options);

  /// Returns true on the one rank that takes requests and talks to the user.
  bool speaks() const { return world_->rank() == 0; }
  comm::PartOfWorld& part() { return part_; }  ///< the ranks of this rank's replica
  comm::Mesh& mesh() { return mesh_; }         ///< the same, with the axes of the layout

  /// Loads the model of the options and says its notices. Errors: those of serve::load_with_draft().
  serve::ModelAndDraft load(const run::Loading& loading, const run::Program* program);
  /// Calls `work`, the last step before requests, as comm::agree() does. From then on a stop signal lets requests end.
  void make_ready(const std::function<void()>& work);
  /// Serves the model, which the loop runs, until a stop signal. The line with the address names the model and ends in
  /// `summary`. Returns the exit status. Errors: those of serve::ServedReplicas, on rank 0 those of all replicas.
  int serve(serve::ReplicaLoop& loop, serve::ServedModel model, const std::string& summary);

 private:
  const ServeOptions& options_;
  const std::unique_ptr<comm::World> world_;
  comm::Mesh everyone_;
  std::unique_ptr<ServerFront> front_;  // null unless this rank speaks()
  comm::PartOfWorld part_;
  comm::Mesh mesh_;
};

}  // namespace colossal::cli
