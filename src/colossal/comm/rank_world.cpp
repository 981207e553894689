#include "colossal/comm/rank_world.h"

#include <algorithm>
#include <memory>

#include "colossal/base/error.h"
#include "colossal/comm/decorators/decorator.h"
#include "colossal/comm/decorators/watchdog.h"
#include "colossal/comm/simulated_world.h"
#include "colossal/comm/traffic.h"

namespace colossal::comm {
namespace {

/// Counts the payload that a group sends, by the ring formulas of Group's contract. Adds one entry to `traffic` per
/// call, under the group's name, before the call is made. Arguments are checked first, so a refused call is not
/// counted. send counts numel(x); recv and barrier only count calls. `traffic` must outlive the group.
class CountingGroup : public GroupDecorator {
 public:
  CountingGroup(std::shared_ptr<Group> inner, Traffic& traffic) : GroupDecorator(std::move(inner)), traffic_(traffic) {}

  Work issue(const Call& call) override {
    check(*this, call);
    const Payload sent = sent_by(*this, call);
    traffic_.add(name(), to_string(call.collective), sent.elements, sent.bytes);
    return inner_->issue(call);
  }

 private:
  Traffic& traffic_;
};

}  // namespace

RankWorld::RankWorld(const Options& options, Connect connect, std::shared_ptr<Store> watchdog_store)
    : options_(options), connect_(std::move(connect)) {
  if (!watchdog_store || options.size == 1) return;
  const Watchdog::Options watch{options.watchdog, options.notice, options.rank, options.size};
  watchdog_ = std::make_shared<Watchdog>(std::move(watchdog_store), watch,
                                         [this](const std::string& reason) { abort(reason); });
}

RankWorld::~RankWorld() {
  if (watchdog_) watchdog_->stop();  // because groups may keep the watchdog alive, but its thread uses this world
}

Membership RankWorld::membership(const std::string& name, const std::vector<int>& ranks) {
  Membership result{.name = name, .key = name + ":", .ranks = ranks, .rank = -1, .channel = {}};
  for (size_t i = 0; i < ranks.size(); ++i) {
    require(ranks[i] >= 0 && ranks[i] < size(), "comm", "group \"", name, "\": ranks must be in [0, ", size(),
            "): got ", ranks[i]);
    require(std::find(ranks.begin(), ranks.begin() + i, ranks[i]) == ranks.begin() + i, "comm", "group \"", name,
            "\": rank ", ranks[i], " is given twice");
    if (ranks[i] == rank()) result.rank = static_cast<int>(i);
    result.key += concat(i ? "," : "", ranks[i]);
  }
  require(result.rank >= 0, "comm", "group \"", name, "\": only members may ask for it: rank ", rank(),
          " is not among its ", ranks.size(), " ranks");
  const std::lock_guard lock(mutex_);
  result.key += concat(":", requests_[result.key]++);
  return result;
}

std::shared_ptr<Group> RankWorld::make_group(const std::string& name, const std::vector<int>& ranks,
                                             const std::string& channel) {
  Membership member = membership(name, ranks);
  member.channel = channel;
  if (member.size() == 1) return std::make_shared<IdleGroup>(name, 0, 1);
  const std::shared_ptr<Backend> backend = connect_(member);
  {
    const std::lock_guard lock(mutex_);
    backends_.push_back(backend);
    if (aborted_) backend->abort(*aborted_);
  }
  std::shared_ptr<Group> group = backend;
  if (watchdog_) {
    const int handle = watchdog_->add_group(name, member.key, ranks, member.rank);
    group = std::make_shared<WatchedGroup>(group, watchdog_, handle, traffic_);
  }
  return std::make_shared<CountingGroup>(group, traffic_);
}

std::shared_ptr<void> RankWorld::busy(const std::string& what) {
  if (!watchdog_) return nullptr;
  return {nullptr, [watchdog = watchdog_, episode = watchdog_->enter(what)](void*) { watchdog->leave(episode); }};
}

void RankWorld::on_stall(std::function<void(const Stall&)> listener) {
  if (watchdog_) watchdog_->set_listener(std::move(listener));
}

void RankWorld::abort(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (!aborted_) aborted_ = reason;
  for (const auto& backend : backends_) backend->abort(reason);
}

}  // namespace colossal::comm
