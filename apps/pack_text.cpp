// Packs the text of data.path = "builtin" from the sources: colossal_pack_text SOURCES FILE. Builds and
// `cmake --install` run it.
#include <cstdio>
#include <exception>

#include "colossal/base/foreign_error.h"
#include "colossal/data/texts/text_archive.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: colossal_pack_text SOURCES FILE\n");
    return 2;
  }
  try {
    colossal::data::write_text_archive(argv[1], argv[2], colossal::data::project_text());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "colossal_pack_text: %s\n", colossal::plain_message(error).c_str());
    return 1;
  }
}
