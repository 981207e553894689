#include "colossal/tensor/mesh_coordinates.h"

namespace colossal::tensor {

int MeshCoordinates::size(const std::string& axis) const {
  for (const Axis& a : axes_)
    if (a.name == axis) return a.size;
  return 1;
}

int MeshCoordinates::index(const std::string& axis) const {
  for (const Axis& a : axes_)
    if (a.name == axis) return a.index;
  return 0;
}

int MeshCoordinates::size(const std::vector<std::string>& axes) const {
  int product = 1;
  for (const std::string& axis : axes) product *= size(axis);
  return product;
}

int MeshCoordinates::index(const std::vector<std::string>& axes) const {
  int index_of_all = 0;
  for (const std::string& axis : axes) index_of_all = index_of_all * size(axis) + index(axis);
  return index_of_all;
}

std::vector<std::string> MeshCoordinates::batch_axes() const {
  std::vector<std::string> names;
  for (const Axis& axis : axes_)
    if (axis.batch_split != BatchSplit::Nothing) names.push_back(axis.name);
  return names;
}

std::vector<std::string> MeshCoordinates::row_axes() const {
  std::vector<std::string> names;
  for (const Axis& axis : axes_)
    if (axis.batch_split == BatchSplit::Rows) names.push_back(axis.name);
  return names;
}

}  // namespace colossal::tensor
