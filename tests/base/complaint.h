// What a test's own work is refused with.
#pragma once
#include <string>

#include "colossal/base/error.h"

namespace colossal::test {

/// The message of the Error that `work` throws; "no complaint" when it throws none.
template <class Work>
std::string complaint(const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "no complaint";
}

}  // namespace colossal::test
