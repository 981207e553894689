#include "colossal/comm/mesh.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/tensor/device_meant.h"

namespace colossal::comm {
namespace {

tensor::MeshCoordinates coordinates_of(const World& world, const std::vector<Mesh::Axis>& axes) {
  int64_t product = 1;
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto& axis = axes[i];
    require(axis.size >= 1, "parallel", axis.name, " must be at least 1: got ", axis.size);
    for (size_t j = 0; j < i; ++j)
      require(axes[j].name != axis.name, "parallel", "axis ", axis.name, " is given twice");
    product *= axis.size;
  }
  const std::string layout =
      join(axes, " x ", [](const Mesh::Axis& axis) { return concat(axis.name, " ", axis.size); });
  require(product == world.size(), "parallel", "the sizes of the axes must multiply to the number of ranks: got ",
          layout.empty() ? "no axes" : layout, " = ", product, " for ", world.size(), " ranks; start ", product,
          " ranks or change the sizes");
  std::vector<tensor::MeshCoordinates::Axis> own;
  int rest = world.rank();
  for (size_t i = axes.size(); i-- > 0;) {
    own.push_back({axes[i].name, axes[i].size, rest % axes[i].size, axes[i].batch_split});
    rest /= axes[i].size;
  }
  std::reverse(own.begin(), own.end());
  return tensor::MeshCoordinates(std::move(own));
}

}  // namespace

Mesh::Mesh(World& world, const std::vector<Axis>& axes) : Mesh(coordinates_of(world, axes), world) {}

Mesh::Mesh(tensor::MeshCoordinates all, World& world) : world_(world), all_(std::move(all)), coordinates_(all_) {}

Mesh Mesh::without(const std::vector<std::string>& hidden) const {
  Mesh view(all_, world_);
  view.groups_ = groups_;
  std::vector<tensor::MeshCoordinates::Axis> axes = coordinates_.axes();
  std::erase_if(axes,
                [&](const auto& axis) { return std::find(hidden.begin(), hidden.end(), axis.name) != hidden.end(); });
  view.coordinates_ = tensor::MeshCoordinates(std::move(axes));
  return view;
}

std::vector<std::string> Mesh::visible(std::vector<std::string> axes) const {
  const auto has = [](const tensor::MeshCoordinates& mesh, const std::string& name) {
    return std::any_of(mesh.axes().begin(), mesh.axes().end(), [&](const auto& axis) { return axis.name == name; });
  };
  std::erase_if(axes, [&](const std::string& name) { return has(all_, name) && !has(coordinates_, name); });
  return axes;
}

std::vector<int> Mesh::ranks_along(const std::vector<std::string>& axes) const {
  // Starts from this rank with its indices along `axes` set to 0, then adds every combination of them, the first axis
  // outermost.
  std::map<std::string, int> strides;
  int stride = 1;
  for (size_t i = all_.axes().size(); i-- > 0;) {
    strides[all_.axes()[i].name] = stride;
    stride *= all_.axes()[i].size;
  }
  int origin = world_.rank();
  for (const auto& axis : axes) origin -= coordinates_.index(axis) * strides[axis];
  std::vector<int> ranks{origin};
  for (const auto& axis : axes) {
    std::vector<int> longer;
    for (int rank : ranks) {
      for (int i = 0; i < coordinates_.size(axis); ++i) longer.push_back(rank + i * strides[axis]);
    }
    ranks = std::move(longer);
  }
  return ranks;
}

std::string Mesh::name_of(const std::vector<std::string>& axes) {
  std::string name;
  for (size_t i = 0; i < axes.size(); ++i) {
    const bool repeated = std::find(axes.begin(), axes.begin() + i, axes[i]) != axes.begin() + i;
    require(!repeated, "parallel", "a group cannot name axis ", axes[i], " twice");
    name += (i ? "+" : "") + axes[i];
  }
  return name;
}

Group& Mesh::group(const std::vector<std::string>& axes) {
  const std::vector<std::string> own = visible(axes);
  return made(name_of(own), ranks_along(own));
}

Group& Mesh::channel(const std::string& axis, const std::string& purpose) {
  if (visible({axis}).empty()) return group(std::vector<std::string>{});
  return made(axis + " " + purpose, ranks_along({axis}), false, purpose);
}

std::vector<std::string> Mesh::axes_but(const std::string& left_out) const {
  std::vector<std::string> names;
  for (const auto& axis : coordinates_.axes())
    if (axis.name != left_out) names.push_back(axis.name);
  return names;
}

Group& Mesh::neighbours(const std::vector<std::string>& given, int count) {
  const std::vector<std::string> axes = visible(given);
  const std::string name = name_of(axes);
  const int size = coordinates_.size(axes), begin = coordinates_.index(axes) / std::max(count, 1) * count;
  require(count >= 1 && size % count == 0, "parallel", "runs of neighbours must divide their axis: got runs of ", count,
          " along ", name, " of size ", size);
  const std::vector<int> all = ranks_along(axes);
  return made(concat(name, "/", count), std::vector<int>(all.begin() + begin, all.begin() + begin + count));
}

Group& Mesh::counterparts(const std::vector<std::string>& given, int count) {
  const std::vector<std::string> axes = visible(given);
  std::string name = name_of(axes);
  const int size = coordinates_.size(axes);
  require(count >= 1 && size % count == 0, "parallel", "runs of neighbours must divide their axis: got runs of ", count,
          " along ", name, " of size ", size);
  const std::vector<int> all = ranks_along(axes);
  std::vector<int> ranks;
  for (int i = coordinates_.index(axes) % count; i < size; i += count) {
    name += concat(".", i);
    ranks.push_back(all[i]);
  }
  return made(name, ranks);
}

Group& Mesh::among(const std::vector<std::string>& given, const std::string& axis, const std::vector<int>& indices) {
  const std::vector<std::string> axes = visible(given);
  std::string name = axis;
  for (const int index : indices) name += concat(".", index);
  for (const auto& other : axes) name += "+" + other;
  require(std::find(indices.begin(), indices.end(), index(axis)) != indices.end(), "parallel",
          "a rank can make only groups that it belongs to: got ", name, " at index ", index(axis));
  const std::vector<int> along = ranks_along({axis});
  const int stride = along.size() > 1 ? along[1] - along[0] : 0;
  std::vector<int> ranks;
  for (const int i : indices)
    for (const int rank : ranks_along(axes)) ranks.push_back(rank + (i - index(axis)) * stride);
  std::sort(ranks.begin(), ranks.end());
  return made(name, ranks);
}

Group& Mesh::one_way(const std::string& axis, int from, int to) {
  const auto is_along = [&](int i) { return i >= 0 && i < size(axis); };
  require(is_along(from) && is_along(to) && from != to && (from == index(axis) || to == index(axis)), "parallel",
          "a one-way group needs this rank and another one along ", axis, " of size ", size(axis), ": got ", from, ">",
          to, " at index ", index(axis));
  const std::vector<int> along = ranks_along({axis});
  return made(concat(axis, " ", from, ">", to), {along[from], along[to]}, true);
}

Group& Mesh::made(const std::string& name, const std::vector<int>& ranks, bool is_one_way, const std::string& channel) {
  const std::lock_guard lock(groups_->mutex);
  auto& group = groups_->by_name[name];
  if (!group) {
    group = world_.make_group(name, ranks, channel);
    groups_->in_order.push_back({group.get(), is_one_way});
  }
  return *group;
}

void Mesh::connect(at::Device device) {
  if (!tensor::is_accelerator(device)) return;
  std::vector<Made> groups;
  {
    const std::lock_guard lock(groups_->mutex);
    groups = groups_->in_order;
  }
  at::Tensor number = at::zeros({1}, device);
  for (const auto& [group, is_one_way] : groups) {
    if (group->size() == 1) continue;
    Work work = !is_one_way          ? group->all_reduce(number, Reduce::Sum)
                : group->rank() == 0 ? group->send(number, 1)
                                     : group->recv(number, 0);
    work.wait();
  }
}

}  // namespace colossal::comm
