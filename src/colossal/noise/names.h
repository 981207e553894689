// Tables whose rows have a name that a user writes.
//
//   const Row& row = named(rows(), options.schedule, "diffusion", "schedule");
#pragma once
#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/base/suggest.h"

namespace colossal::noise {

/// Returns the member `name` of each row.
template <class Row>
std::vector<std::string> names_of(const std::vector<Row>& rows) {
  std::vector<std::string> names;
  for (const Row& row : rows) names.emplace_back(row.name);
  return names;
}

/// Returns the row of that name. Errors (`component`): `key` has no such value; the message has the nearest name and
/// all names.
template <class Row>
const Row& named(const std::vector<Row>& rows, const std::string& name, const char* component, const char* key) {
  for (const Row& row : rows)
    if (row.name == name) return row;
  const std::vector<std::string> names = names_of(rows);
  throw Error(component, concat(key, " must be one of ", join(names), ": got `", name, "`", did_you_mean(name, names)));
}

}  // namespace colossal::noise
