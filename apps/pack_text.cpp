// Packs the text files of a folder into one file: colossal_pack_text FOLDER FILE. `cmake --install` runs it.
#include <cstdio>
#include <exception>

#include "colossal/base/foreign_error.h"
#include "colossal/data/texts/text_archive.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: colossal_pack_text FOLDER FILE\n");
    return 2;
  }
  try {
    colossal::data::write_text_archive(argv[1], argv[2]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "colossal_pack_text: %s\n", colossal::plain_message(error).c_str());
    return 1;
  }
}
