// A World built on any transport: the code that thread ranks and process ranks share.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "colossal/comm/backends/backend.h"
#include "colossal/comm/decorators/watchdog.h"
#include "colossal/comm/store.h"
#include "colossal/comm/world.h"

namespace colossal::comm {

/// Description of a new group: everything a transport needs to connect its members.
struct Membership {
  std::string name;
  std::string key;         ///< key of this group: the same on all members, unique among groups
  std::vector<int> ranks;  ///< ranks of the world, in group order
  int rank = 0;            ///< index of this rank within `ranks`
  std::string channel;     ///< channel for device tensors (World::make_group)
  int size() const { return static_cast<int>(ranks.size()); }
};

/// Connects the members of a group; collective among them.
using Connect = std::function<std::shared_ptr<Backend>(const Membership&)>;

class RankWorld : public World {
 public:
  struct Options {
    int rank = 0, size = 1, local_rank = 0, local_size = 1;
    std::string backend;
    std::chrono::milliseconds watchdog{30000};  ///< Watchdog::Options::limit
    std::chrono::milliseconds notice{10000};    ///< Watchdog::Options::notice
  };
  /// Only the watchdog uses `watchdog_store`; null = no watchdog.
  RankWorld(const Options& options, Connect connect, std::shared_ptr<Store> watchdog_store);
  ~RankWorld() override;

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
  int local_rank() const override { return options_.local_rank; }
  int local_size() const override { return options_.local_size; }
  std::shared_ptr<Group> make_group(const std::string& name, const std::vector<int>& ranks,
                                    const std::string& channel = "") override;
  Traffic& traffic() override { return traffic_; }
  std::shared_ptr<void> busy(const std::string& what) override;
  void on_stall(std::function<void(const Stall&)> listener) override;
  std::string backend() const override { return options_.backend; }

  /// Ends all groups of this rank, including groups made later.
  void abort(const std::string& reason);

 private:
  Membership membership(const std::string& name, const std::vector<int>& ranks);

  const Options options_;
  const Connect connect_;
  Traffic traffic_;
  std::mutex mutex_;
  std::map<std::string, int> requests_;             // number of requests so far, by name and ranks
  std::vector<std::shared_ptr<Backend>> backends_;  // kept alive, so that a failing rank reports its reason to its
                                                    // peers before it leaves
  std::optional<std::string> aborted_;
  std::shared_ptr<Watchdog> watchdog_;
};

}  // namespace colossal::comm
