#include "colossal/comm/backends/device_group.h"

#include <ATen/core/Tensor.h>

#include "colossal/base/error.h"
#include "colossal/base/join.h"

namespace colossal::comm {

std::shared_ptr<Backend> DeviceLinks::of(const Membership& member, bool transfers, const std::function<void()>& go_on) {
  Membership linked = member;
  linked.key = join(member.ranks, ",");
  linked.name = concat("devices of ranks ", linked.key);
  linked.key += transfers ? ":transfers" : ":collectives";
  if (!member.channel.empty()) linked.key += ":" + member.channel, linked.name += ", " + member.channel;
  std::shared_ptr<Link> link;
  {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Link>& found = links_[linked.key];
    if (!found) found = std::make_shared<Link>();
    link = found;
  }
  const std::lock_guard lock(link->mutex);  // a lock per link, so that other links can connect at the same time
  if (!link->backend) link->backend = connect_(linked, go_on);
  return link->backend;
}

void DeviceGroup::go_on() {
  const std::lock_guard lock(mutex_);
  if (reason_) throw Error("comm", *reason_);
}

std::shared_ptr<Backend> DeviceGroup::link_for(const Call& call) {
  const size_t kind = call.is_transfer() ? 1 : 0;
  {
    const std::lock_guard lock(mutex_);
    if (reason_) throw Error("comm", *reason_);
    if (used_[kind]) return used_[kind];
  }
  auto link = links_->of(member_, call.is_transfer(), [this] { go_on(); });
  const std::lock_guard lock(mutex_);
  if (reason_) link->abort(*reason_);  // an abort arrived while the link was made
  return used_[kind] = std::move(link);
}

Work DeviceGroup::issue(const Call& call) {
  if (!call.tensor() || !call.tensor()->defined() || call.tensor()->device().is_cpu()) return host_->issue(call);
  check(*this, call);
  return link_for(call)->issue(call);
}

void DeviceGroup::abort(const std::string& reason) noexcept {
  std::vector<std::shared_ptr<Backend>> used;
  {
    const std::lock_guard lock(mutex_);
    if (!reason_) reason_ = reason;
    used = used_;
  }
  host_->abort(reason);
  for (const auto& link : used)
    if (link) link->abort(reason);
}

}  // namespace colossal::comm
