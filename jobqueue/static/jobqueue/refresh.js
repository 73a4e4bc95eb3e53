/* Reloads the overview every few seconds, unless somebody is doing something there.
 *
 * Nothing is fetched and nothing replaced: the page is the same without this file. What was
 * unfolded stays so, and the page stays where it was scrolled to.
 */
(function () {
    'use strict';

    var KEY = 'jobqueue.overview';

    function all(selector) {
        return Array.prototype.slice.call(document.querySelectorAll(selector));
    }

    function read() {
        try {
            return JSON.parse(window.sessionStorage.getItem(KEY)) || {};
        } catch (error) {
            return {};
        }
    }

    function write(state) {
        try {
            window.sessionStorage.setItem(KEY, JSON.stringify(state));
            return true;
        } catch (error) {
            return false;
        }
    }

    function openIds() {
        return all('#jobqueue-overview-page details[open]').map(function (each) { return each.id; });
    }

    function restore(state) {
        (state.open || []).forEach(function (id) {
            var each = document.getElementById(id);
            if (each) { each.open = true; }
        });
        if (state.reloaded) {
            window.scrollTo(0, state.scroll || 0);
            var focused = document.getElementById(state.focused || '');
            if (focused) { focused.querySelector('summary').focus({preventScroll: true}); }
        }
    }

    /* The one thing that may have the focus: what folds the numbers, which is given it back. */
    function foldedBy(element) {
        return element && element.tagName === 'SUMMARY' ? element.parentNode.id : '';
    }

    function isBusy() {
        var active = document.activeElement;
        var isFocused = active && active !== document.body && !foldedBy(active);
        var selection = window.getSelection();
        return document.hidden || isFocused || (selection && !selection.isCollapsed);
    }

    function reload() {
        if (isBusy()) { return; }
        var state = {
            open: openIds(),
            scroll: window.pageYOffset,
            focused: foldedBy(document.activeElement),
            reloaded: true
        };
        if (write(state)) { window.location.reload(); }
    }

    document.addEventListener('DOMContentLoaded', function () {
        var page = document.getElementById('jobqueue-overview-page');
        if (!page) { return; }
        restore(read());
        write({open: openIds()});
        page.addEventListener('toggle', function () { write({open: openIds()}); }, true);
        var seconds = Number(page.getAttribute('data-refresh'));
        if (seconds) { window.setInterval(reload, seconds * 1000); }
    });
}());
