// The script that draws the charts of a report from chart_data().
#pragma once

namespace colossal::report {

/// Returns the script. It draws all charts into the element with the id "charts". It reacts to the controls with the
/// ids "x", "log" and "smooth" and to the check boxes named "run". It stores the view in the page's address:
/// #x=time&log=1&smooth=0.9&hide=2.
const char* chart_script();

}  // namespace colossal::report
