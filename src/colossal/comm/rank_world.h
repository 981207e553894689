// A World made of a transport: what threads and processes have in common.
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

/// Where the new group stands: everything a transport needs to connect its members.
struct Membership {
  std::string name;
  std::string key;         ///< of this very group: the same on all members, no other group's
  std::vector<int> ranks;  ///< of the world, in group order
  int rank = 0;            ///< of this rank within `ranks`
  std::string channel;     ///< of devices: World::make_group
  int size() const { return static_cast<int>(ranks.size()); }
};

/// Connects the members of a group; collective among them.
using Connect = std::function<std::shared_ptr<Backend>(const Membership&)>;

class RankWorld : public World {
 public:
  struct Options {
    int rank = 0, size = 1, local_rank = 0, local_size = 1;
    std::string backend;
    std::chrono::milliseconds watchdog{30000};
    std::chrono::milliseconds notice{10000};
  };
  /// `watchdog_store` is used by the watchdog alone; without one there is no watchdog.
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

  /// Ends all groups of this rank, those to come included.
  void abort(const std::string& reason);

 private:
  Membership membership(const std::string& name, const std::vector<int>& ranks);

  const Options options_;
  const Connect connect_;
  Traffic traffic_;
  std::mutex mutex_;
  std::map<std::string, int> requests_;             // of the same name and ranks, so far
  std::vector<std::shared_ptr<Backend>> backends_;  // kept: a rank that fails tells its peers why before it leaves
  std::optional<std::string> aborted_;
  std::shared_ptr<Watchdog> watchdog_;
};

}  // namespace colossal::comm
