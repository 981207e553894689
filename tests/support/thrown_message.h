// The message of an expected error.
#pragma once
#include <string>

#include "colossal/base/error.h"

namespace colossal::test {

/// Returns the message of the Error that `fn` throws, or "" if it throws none. Other exceptions pass, so that a test
/// fails if a user would see one of LibTorch or of the JSON library.
template <class Fn>
std::string thrown_message(const Fn& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace colossal::test
