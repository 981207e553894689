// The error message of a function that a test calls.
#pragma once
#include <string>

#include "colossal/base/error.h"

namespace colossal::test {

/// Returns the message of the Error that `work` throws, or "no complaint" if it throws none.
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
